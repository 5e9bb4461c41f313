//! A stream of the emulated device: a thread that runs the stream's work in order.

use super::DeviceError;
use ginlab_base::limits::explain;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

/// Work of a stream, which a graph may run more than once.
pub type StreamWork = Arc<dyn Fn() -> Result<(), DeviceError> + Send + Sync>;

/// Time at which the stream reached the event, or the first error before that.
pub struct EmulatedEvent(Arc<OnceLock<Result<Instant, DeviceError>>>);

enum Task {
    /// Work and its number, from 1.
    Work(StreamWork, u64),
    Event(Arc<OnceLock<Result<Instant, DeviceError>>>),
}

/// Handle of the stream's thread.
pub struct Worker {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    recorded: RefCell<Option<Vec<StreamWork>>>,
    /// Number of works that were queued.
    queued: Cell<u64>,
    /// Number of leading works that are not executed if they have not started.
    discarded: Arc<AtomicU64>,
}

impl Worker {
    pub fn start() -> Result<Worker, DeviceError> {
        let (tasks, todo) = channel();
        let discarded = Arc::new(AtomicU64::new(0));
        let of_thread = discarded.clone();
        let body = move || {
            let mut failed = None;
            for task in todo {
                match task {
                    Task::Work(_, number) if number <= of_thread.load(Ordering::Relaxed) => {}
                    Task::Work(work, _) if failed.is_none() => failed = work().err(),
                    // As on a GPU, work queued after an error is not executed.
                    Task::Work(..) => {}
                    Task::Event(event) => {
                        let _ = event.set(failed.clone().map_or_else(|| Ok(Instant::now()), Err));
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("stream".into()).spawn(body);
        let thread =
            thread.map_err(|error| DeviceError::Emulated(format!("cannot start a thread: {}", explain(&error))))?;
        let (recorded, queued) = (RefCell::new(None), Cell::new(0));
        Ok(Worker { tasks: Some(tasks), thread: Some(thread), recorded, queued, discarded })
    }

    fn send(&self, task: Task) -> Result<(), DeviceError> {
        let sent = self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok());
        if sent { Ok(()) } else { Err(DeviceError::Emulated("the stream's thread exited".into())) }
    }

    pub fn work(&self, work: StreamWork) -> Result<(), DeviceError> {
        if let Some(recorded) = self.recorded.borrow_mut().as_mut() {
            recorded.push(work);
            return Ok(());
        }
        self.queue(work)
    }

    fn queue(&self, work: StreamWork) -> Result<(), DeviceError> {
        self.queued.set(self.queued.get() + 1);
        self.send(Task::Work(work, self.queued.get()))
    }

    /// Discards the work queued so far that has not started.
    pub fn discard(&self) {
        self.discarded.store(self.queued.get(), Ordering::Relaxed);
    }

    pub fn event(&self) -> Result<EmulatedEvent, DeviceError> {
        let event = Arc::new(OnceLock::new());
        self.send(Task::Event(event.clone()))?;
        Ok(EmulatedEvent(event))
    }

    /// Waits for an event. The other stream's thread always reaches it, with or without an error.
    pub fn wait_for(&self, event: &EmulatedEvent) -> Result<(), DeviceError> {
        let event = event.0.clone();
        self.queue(Arc::new(move || event.wait().clone().map(drop)))
    }

    /// Waits for the work queued so far. Returns the stream's first error.
    pub fn failure(&self) -> Option<DeviceError> {
        self.event().and_then(|event| event.0.wait().clone().map(drop)).err()
    }

    pub fn begin_recording(&self) {
        self.recorded.replace(Some(Vec::new()));
    }

    pub fn end_recording(&self) -> Vec<StreamWork> {
        self.recorded.take().unwrap_or_default()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks = None;
        // A panic of a kernel was reported as an error of its grid.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl EmulatedEvent {
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        self.0.get().cloned().transpose().map(|found| found.is_some())
    }

    pub fn since_us(&self, earlier: &EmulatedEvent) -> Result<f64, DeviceError> {
        let at = |event: &EmulatedEvent| {
            event
                .0
                .get()
                .cloned()
                .unwrap_or_else(|| Err(DeviceError::Emulated("an event has not been reached yet".into())))
        };
        Ok(at(self)?.duration_since(at(earlier)?).as_secs_f64() * 1e6)
    }
}
