//! Versions of the software and description of the machine that produced a result.

use ginlab_report::{Header, Key};
use ginlab_topology::{environment, nvml};
use std::fmt;
use std::path::Path;
use std::time::SystemTime;

/// Commit, with `-dirty` if tracked files differ from it. Set by build.rs; `None` if the sources came without git.
const COMMIT: Option<&str> = option_env!("GINLAB_COMMIT");
/// Version of the compiler of the host code, and the profile if it is not the release profile. Set by build.rs.
const RUSTC: Option<&str> = option_env!("GINLAB_RUSTC");

/// Versions that only the libraries report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// Version and file of the loaded libfabric, or `none`.
    pub libfabric: String,
    /// Version of the CUDA driver; `None` if there is none.
    pub cuda_driver: Option<String>,
    /// Version of the MPI library; `None` if there is none.
    pub mpi: Option<String>,
}

/// All versions, and a description of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Version of ginlab.
    pub ginlab: &'static str,
    /// Commit from which ginlab was built, if known at build time.
    pub commit: Option<&'static str>,
    /// Version of the compiler with which ginlab was built, if known at build time.
    pub rustc: Option<&'static str>,
    /// Version of the compiler and LLVM that produced the kernels' PTX, marked if it is not the project's compiler;
    /// `None` without PTX.
    pub kernel_rustc: Option<&'static str>,
    /// Versions of the libraries.
    pub libraries: Libraries,
    /// Model of the CPU.
    pub cpu: Option<String>,
    /// Number of cores that this process may use.
    pub cores: Option<usize>,
    /// Release of the operating system's kernel.
    pub kernel: Option<String>,
    /// Host name of the machine.
    pub hostname: Option<String>,
    /// EC2 instance type of the machine.
    pub instance: Option<String>,
}

impl Versions {
    /// Collects the versions from the build, the system and the libraries.
    pub fn here() -> Self {
        let cuda_driver =
            ginlab_cuda::driver_version().map(|cuda| driver_text(nvml::driver_version(), &cuda.to_string()));
        let libfabric = ginlab_fabric::libfabric::library_text();
        Self::gather(Libraries { libfabric, cuda_driver, mpi: ginlab_bootstrap::mpi_version() })
    }

    /// Returns a header with software, machine, date and command line, for a caller to extend.
    pub fn header() -> Header {
        let mut header = Header::default();
        Self::here().fill(&mut header);
        header
    }

    /// Collects versions from the build and the system; the caller provides those of the libraries.
    fn gather(libraries: Libraries) -> Self {
        let read = |path| std::fs::read_to_string(path).ok();
        Self {
            ginlab: env!("CARGO_PKG_VERSION"),
            commit: COMMIT.filter(|commit| !commit.is_empty()),
            rustc: RUSTC.filter(|rustc| !rustc.is_empty()),
            kernel_rustc: ginlab_cuda::ptx().rustc,
            libraries,
            cpu: read("/proc/cpuinfo").and_then(|text| cpu_model(&text)),
            cores: Some(ginlab_topology::cores::allowed().len()).filter(|cores| *cores > 0),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().into()),
            instance: environment::instance_type(Path::new("/")),
            hostname: nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()),
        }
    }

    /// Fills in the header's keys for software, machine, environment, date and command line.
    pub fn fill(&self, header: &mut Header) {
        let environment = environment::variables(std::env::vars_os());
        header
            .set(Key::Ginlab, self.ginlab)
            .set(Key::Commit, self.commit)
            .set(Key::Command, command_line())
            .set(Key::Date, utc(SystemTime::now()))
            .set(Key::Hostname, self.hostname.clone())
            .set(Key::Instance, self.instance.clone())
            .set(Key::Cpu, self.cpu.clone())
            .set(Key::Cores, self.cores)
            .set(Key::Kernel, self.kernel.clone())
            .set(Key::Rustc, self.rustc)
            .set(Key::KernelRustc, self.kernel_rustc)
            .set(Key::Driver, self.libraries.cuda_driver.clone())
            .set(Key::Libfabric, self.libraries.libfabric.as_str())
            .set(Key::Mpi, self.libraries.mpi.clone())
            .set(Key::Environment, Some(environment).filter(|list| !list.is_empty()));
    }
}

/// Output of `--version`: the version without the executable's name on the first line, then one line per component.
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |value: Option<&str>| value.unwrap_or("unknown").to_owned();
        let found = |value: &Option<String>| value.clone().unwrap_or_else(|| "not found".into());
        writeln!(f, "{} (commit {})", self.ginlab, known(self.commit))?;
        writeln!(f, "rustc       {}", known(self.rustc))?;
        writeln!(
            f,
            "kernels by  {}",
            self.kernel_rustc.map_or("none: without PTX".into(), |version| format!("rustc {version}"))
        )?;
        writeln!(f, "libfabric   {}", self.libraries.libfabric)?;
        writeln!(f, "CUDA driver {}", found(&self.libraries.cuda_driver))?;
        writeln!(f, "MPI         {}", found(&self.libraries.mpi))?;
        writeln!(f, "kernel      {}", known(self.kernel.as_deref()))?;
        write!(f, "CPU         {}", known(self.cpu.as_deref()))
    }
}

/// Describes the CUDA driver. Its own version is available only from NVML; `cuda` is the CUDA version that the driver
/// supports.
fn driver_text(driver: Option<String>, cuda: &str) -> String {
    match driver {
        Some(driver) => format!("{driver} (CUDA {cuda})"),
        None => format!("supports CUDA {cuda}"),
    }
}

/// Returns the model name in the text of /proc/cpuinfo. Some architectures do not report one.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    })
}

/// Returns this process's command line, quoted so that it can be pasted into a shell.
pub fn command_line() -> String {
    let quoted: Vec<String> = std::env::args_os().map(|argument| quote(&argument.to_string_lossy())).collect();
    quoted.join(" ")
}

fn quote(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+,./:@%^".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.into()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

/// Formats `time` in UTC, for example `2026-01-31T23:59:59Z`.
pub fn utc(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn dates_are_formatted_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn command_lines_can_be_pasted() {
        assert_eq!(quote("--rails=1,4"), "--rails=1,4");
        assert_eq!(quote("tcp;ofi_rxm"), "'tcp;ofi_rxm'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn cpu_name_is_optional() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Fast CPU: X\n").as_deref(), Some("Fast CPU: X"));
        assert_eq!(cpu_model("processor\t: 0\nCPU part\t: 0xd40\n"), None);
    }

    #[test]
    fn driver_version_or_cuda_support_is_named() {
        assert_eq!(driver_text(Some("580.159.04".into()), "13.0"), "580.159.04 (CUDA 13.0)");
        assert_eq!(driver_text(None, "12.8"), "supports CUDA 12.8");
    }

    /// The text has the form that build.rs uses for a compiler that is not the project's.
    #[test]
    fn header_names_kernel_compiler() {
        let mut versions = Versions::gather(Libraries::default());
        for kernels in [None, Some("1.99.0, LLVM 24 (not the project's)")] {
            versions.kernel_rustc = kernels;
            let mut header = Header::default();
            versions.fill(&mut header);
            assert_eq!(header.get(Key::KernelRustc).and_then(|value| value.as_str()), kernels);
        }
    }

    #[test]
    fn header_is_complete() {
        let versions =
            Versions::gather(Libraries { libfabric: "1.17 (libfabric.so.1)".into(), ..Libraries::default() });
        let mut header = Header::default();
        versions.fill(&mut header);
        for key in [Key::Ginlab, Key::Command, Key::Date, Key::Hostname, Key::Cores, Key::Kernel, Key::Libfabric] {
            assert!(header.get(key).is_some(), "{key:?}");
        }
        assert_eq!(header.get(Key::Mpi), None);
        assert!(versions.to_string().contains("MPI         not found"));
    }
}
