// NVSHMEM's side of `ginlab shmem`, run alternately with ginlab's: the same shapes, with the loop and a stamp per
// iteration inside the kernel.
//
//   nvcc -O3 -arch=sm_90 -rdc=true -I$NVSHMEM/include nvshmem.cu -L$NVSHMEM/lib -lnvshmem_host -lnvshmem_device \
//       -lcuda -lcudart -o nvshmem-baseline
//   NVSHMEM_BOOTSTRAP=MPI mpirun -np 2 ./nvshmem-baseline
//
// Requires two GPUs, or one that both PEs share (then under MPS, with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50). Depending
// on the case, signals add, as ginlab's do, or are set by a store. For ginlab's messages the equivalent is a put with a
// signal that is set. PE 1 waits for requests on the host, so that no NVSHMEM kernel runs at the same time as those of
// ginlab.
//
// PE 0 reads requests from stdin, `case scope bytes grid block warmup iterations to_at from_at`; the last two are
// the offsets of target and source from an aligned address. It answers `times min p50 p99 p99.9` in microseconds (one
// way of ping-pongs, otherwise a whole iteration), or `times none` for an unsupported case. The program exits at the end
// of its input.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                             \
  do {                                                                          \
    cudaError_t error = (call);                                                 \
    if (error != cudaSuccess) {                                                 \
      fprintf(stderr, "nvshmem-baseline: %s: %s\n", #call, cudaGetErrorString(error)); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

enum Case { P, PUT, GET, PUT_BANDWIDTH, GET_BANDWIDTH, SIGNAL, PUT_SIGNAL, SIGNAL_SET, PUT_SIGNAL_SET, ATOMIC, BARRIER, ALL_TO_ALL, NONE, END };
enum Scope { THREAD, WARP, BLOCK };

struct Request {
  int what, scope, grid, block, warmup, iterations;
  size_t bytes, to_at, from_at;
  // For a get: number of source positions, a power of two, and their distance in bytes.
  int places;
  size_t step;
};

struct Memory {
  char *to, *from;
  uint64_t *signal, *word;
  long long* stamps;
  uint64_t counted;
};

// Requests from PE 0 to PE 1, in shared memory: both are processes of one machine with the same parent.
struct Mailbox {
  int number;
  Request request;
};

__device__ long long nanoseconds() {
  long long t;
  asm volatile("mov.u64 %0,%globaltimer;" : "=l"(t));
  return t;
}

template <int S>
__device__ void sync_scope() {
  if (S == WARP) __syncwarp();
  if (S == BLOCK) __syncthreads();
}

template <int S>
__device__ void put(char* to, const char* from, size_t bytes, int pe) {
  if (S == THREAD) nvshmem_putmem_nbi(to, from, bytes, pe);
  if (S == WARP) nvshmemx_putmem_nbi_warp(to, from, bytes, pe);
  if (S == BLOCK) nvshmemx_putmem_nbi_block(to, from, bytes, pe);
}

template <int S>
__device__ void get(char* to, const char* from, size_t bytes, int pe) {
  if (S == THREAD) nvshmem_getmem(to, from, bytes, pe);
  if (S == WARP) nvshmemx_getmem_warp(to, from, bytes, pe);
  if (S == BLOCK) nvshmemx_getmem_block(to, from, bytes, pe);
}

template <int S, int OPERATION>
__device__ void put_signal(const Memory& m, size_t bytes, uint64_t value, int pe) {
  if (S == THREAD) nvshmem_putmem_signal_nbi(m.to, m.from, bytes, m.signal, value, OPERATION, pe);
  if (S == WARP) nvshmemx_putmem_signal_nbi_warp(m.to, m.from, bytes, m.signal, value, OPERATION, pe);
  if (S == BLOCK) nvshmemx_putmem_signal_nbi_block(m.to, m.from, bytes, m.signal, value, OPERATION, pe);
}

template <int S>
__device__ void wait_signal(const Memory& m, uint64_t value) {
  if (S == THREAD || threadIdx.x == 0) nvshmem_signal_wait_until(m.signal, NVSHMEM_CMP_GE, value);
  sync_scope<S>();
}

__host__ __device__ constexpr bool there_and_back(int what) { return SIGNAL <= what && what <= PUT_SIGNAL_SET; }

// Runs an iteration, or one way of a ping-pong. The case is a compile-time constant, as in ginlab's kernels.
template <int S, int WHAT>
__device__ void turn(const Memory& m, const Request& r, int i, int pe) {
  uint64_t count = m.counted + i + 1;
  switch (WHAT) {
    case P:
      nvshmem_uint64_p(m.word, i, pe);
      nvshmem_quiet();
      break;
    case PUT:
      put<S>(m.to, m.from, r.bytes, pe);
      if (S == THREAD || threadIdx.x == 0) nvshmem_quiet();
      sync_scope<S>();
      break;
    case GET:
      // From several positions: repeated gets from one would be loads from L1.
      get<S>(m.to, m.from + (size_t)(i & (r.places - 1)) * r.step, r.bytes, pe);
      break;
    case ATOMIC:
      // Use the value; otherwise the compiler would not wait for it.
      if (nvshmem_uint64_atomic_fetch_add(m.word, 1, pe) == ~0ull) m.stamps[0] = 0;
      break;
    case SIGNAL:
      nvshmemx_signal_op(m.signal, 1, NVSHMEM_SIGNAL_ADD, pe);
      break;
    case SIGNAL_SET:
      nvshmemx_signal_op(m.signal, count, NVSHMEM_SIGNAL_SET, pe);
      break;
    case PUT_SIGNAL:
      put_signal<S, NVSHMEM_SIGNAL_ADD>(m, r.bytes, 1, pe);
      break;
    case PUT_SIGNAL_SET:
      put_signal<S, NVSHMEM_SIGNAL_SET>(m, r.bytes, count, pe);
      break;
    case BARRIER:
      if (S == THREAD) nvshmem_barrier_all();
      if (S == WARP) nvshmemx_barrier_all_warp();
      if (S == BLOCK) nvshmemx_barrier_all_block();
      break;
    case ALL_TO_ALL:
      if (S == THREAD) nvshmem_char_alltoall(NVSHMEM_TEAM_WORLD, m.to, m.from, r.bytes);
      if (S == WARP) nvshmemx_char_alltoall_warp(NVSHMEM_TEAM_WORLD, m.to, m.from, r.bytes);
      if (S == BLOCK) nvshmemx_char_alltoall_block(NVSHMEM_TEAM_WORLD, m.to, m.from, r.bytes);
      break;
  }
}

// Blocks of 1024 threads limit registers to 64 per thread. In ping-pongs, PE 0 waits before each iteration for the
// preceding answer, and at the end for the last one.
template <int S, int WHAT>
__global__ void __launch_bounds__(1024) latency(Memory m, Request r, int me) {
  if (S == THREAD && threadIdx.x != 0) return;
  if (S == WARP && threadIdx.x >= 32) return;
  constexpr bool answered = there_and_back(WHAT);
  const int begins = me == 0, pe = me ^ 1, turns = r.warmup + r.iterations;
  // Position of the next stamp. Entry 0 contains nanoseconds, and the first stamp is overwritten until the warm-up is
  // over.
  long long* stamp = m.stamps + 1;
  for (int i = 0; i < turns; i++) {
    if (i == r.warmup && threadIdx.x == 0) {
      m.stamps[0] = nanoseconds();
      *stamp = clock64();
    }
    if (answered) wait_signal<S>(m, m.counted + i + 1 - begins);
    turn<S, WHAT>(m, r, i, pe);
    if (threadIdx.x == 0) {
      stamp += i >= r.warmup;
      *stamp = clock64();
    }
  }
  if (threadIdx.x == 0) m.stamps[0] = nanoseconds() - m.stamps[0];
  if (answered && begins) wait_signal<S>(m, m.counted + turns);
}

template <int S>
__global__ void __launch_bounds__(1024) bandwidth(Memory m, Request r, int me) {
  if (threadIdx.x == 0) m.stamps[2 * blockIdx.x] = nanoseconds();
  size_t in_block = S == BLOCK ? 1 : S == WARP ? blockDim.x / 32 : blockDim.x;
  size_t number = blockIdx.x * in_block + (S == BLOCK ? 0 : S == WARP ? threadIdx.x / 32 : threadIdx.x);
  size_t all = gridDim.x * in_block, part = r.bytes / all, first = number * part;
  // The last part includes the remainder, as in ginlab.
  size_t length = number + 1 == all ? r.bytes - first : part;
  for (int i = 0; i < r.iterations; i++) {
    if (r.what == PUT_BANDWIDTH) {
      put<S>(m.to + first, m.from + first, length, me ^ 1);
    } else {
      get<S>(m.to + first, m.from + first, length, me ^ 1);
    }
  }
  if (S != BLOCK || threadIdx.x == 0) nvshmem_quiet();
  __syncthreads();
  if (threadIdx.x == 0) m.stamps[2 * blockIdx.x + 1] = nanoseconds();
}

using Latency = void (*)(Memory, Request, int);

// Returns the kernel of a case. Cases of a single thread have the same kernel in every scope.
template <int S>
Latency latency_of(int what) {
  switch (what) {
    case P: return latency<THREAD, P>;
    case SIGNAL: return latency<THREAD, SIGNAL>;
    case SIGNAL_SET: return latency<THREAD, SIGNAL_SET>;
    case ATOMIC: return latency<THREAD, ATOMIC>;
    case PUT: return latency<S, PUT>;
    case GET: return latency<S, GET>;
    case PUT_SIGNAL: return latency<S, PUT_SIGNAL>;
    case PUT_SIGNAL_SET: return latency<S, PUT_SIGNAL_SET>;
    case BARRIER: return latency<S, BARRIER>;
    default: return latency<S, ALL_TO_ALL>;
  }
}

template <int S>
void launch(Memory& m, const Request& r, int me) {
  bool one_sided = r.what == P || r.what == PUT || r.what == GET || r.what == ATOMIC;
  if (r.what == PUT_BANDWIDTH || r.what == GET_BANDWIDTH) {
    if (me == 0) bandwidth<S><<<r.grid, r.block>>>(m, r, me);
  } else if (r.what == BARRIER || r.what == ALL_TO_ALL) {
    Request request = r;
    void* arguments[] = {&m, &request, &me};
    if (nvshmemx_collective_launch((const void*)latency_of<S>(r.what), 1, r.block, arguments, 0, 0)) {
      fprintf(stderr, "nvshmem-baseline: blocks of %d threads are not launched\n", r.block);
      exit(1);
    }
  } else if (!one_sided || me == 0) {
    latency_of<S>(r.what)<<<1, r.block>>>(m, r, me);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
}

Request parse(const char* line) {
  const char* cases[] = {"p-latency", "put-latency", "get-latency", "put-bandwidth", "get-bandwidth", "signal-ping-pong",
                         "put-signal-ping-pong", "signal-set-ping-pong", "put-signal-set-ping-pong", "atomic-latency", "barrier-all", "all-to-all"};
  char what[64], scope[16];
  Request r = {};
  r.what = NONE;
  if (sscanf(line, "%63s %15s %zu %d %d %d %d %zu %zu", what, scope, &r.bytes, &r.grid, &r.block, &r.warmup, &r.iterations, &r.to_at, &r.from_at) != 9) return r;
  // The equivalent of a message is a put with a signal.
  if (!strcmp(what, "message-ping-pong")) strcpy(what, "put-signal-set-ping-pong");
  for (int i = 0; i < NONE; i++)
    if (!strcmp(what, cases[i])) r.what = i;
  // As in ginlab (`Slots::timed` in verify.rs): whole L1 lines, and 1 MiB of them, which exceeds L1.
  r.step = std::max<size_t>((r.bytes + 127) / 128 * 128, 128);
  for (r.places = 1; r.what == GET && r.step * r.places * 2 <= (size_t)1 << 20;) r.places *= 2;
  r.scope = !strcmp(scope, "thread") ? THREAD : !strcmp(scope, "warp") ? WARP : BLOCK;
  return r;
}

Mailbox* open_mailbox() {
  char name[64];
  snprintf(name, sizeof name, "/nvshmem-baseline-%d", (int)getppid());
  if (nvshmem_my_pe() == 0) shm_unlink(name);
  nvshmem_barrier_all();
  int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Mailbox))) {
    perror("nvshmem-baseline: shm_open");
    exit(1);
  }
  void* memory = mmap(nullptr, sizeof(Mailbox), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) {
    perror("nvshmem-baseline: mmap");
    exit(1);
  }
  // A new file contains zeros. Once both PEs have opened it, it is unlinked, so that no other process finds it.
  nvshmem_barrier_all();
  if (nvshmem_my_pe() == 0) shm_unlink(name);
  return (Mailbox*)memory;
}

int main() {
  nvshmem_init();
  int me = nvshmem_my_pe();
  if (nvshmem_n_pes() != 2) {
    fprintf(stderr, "nvshmem-baseline: %d PEs, two are needed (NVSHMEM_BOOTSTRAP=MPI under mpirun?)\n", nvshmem_n_pes());
    return 1;
  }
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % devices));
  const size_t most = (size_t)512 << 20;
  Memory m = {};
  m.to = (char*)nvshmem_malloc(most);
  m.from = (char*)nvshmem_malloc(most);
  m.signal = (uint64_t*)nvshmem_calloc(1, 8);
  m.word = (uint64_t*)nvshmem_calloc(1, 8);
  Mailbox* mail = open_mailbox();
  int number = 0;
  const int most_stamps = 1 << 20;
  CHECK(cudaMallocHost(&m.stamps, most_stamps * sizeof(long long)));
  nvshmem_barrier_all();
  if (me == 0) {
    int major, minor;
    nvshmem_info_get_version(&major, &minor);
    printf("ready NVSHMEM of specification %d.%d, %d GPU%s\n", major, minor, devices, devices > 1 ? "s" : "");
    fflush(stdout);
  }
  for (;;) {
    Request request = {};
    request.what = END;
    if (me == 0) {
      char line[256];
      if (fgets(line, sizeof line, stdin)) request = parse(line);
      if (request.what < NONE && (request.bytes * 2 > most && request.what == ALL_TO_ALL || request.bytes + std::max(request.to_at, request.from_at) > most ||
                                  request.iterations + 2 > most_stamps || 2 * request.grid > most_stamps))
        request.what = NONE;
      mail->request = request;
      __atomic_store_n(&mail->number, ++number, __ATOMIC_RELEASE);
    } else {
      // Exit if the parent is gone; otherwise this would wait indefinitely.
      for (number++; __atomic_load_n(&mail->number, __ATOMIC_ACQUIRE) != number; usleep(20))
        if (getppid() == 1) return 1;
      request = mail->request;
    }
    nvshmem_barrier_all();
    if (request.what == END) break;
    if (request.what != NONE) {
      memset(m.stamps, 0, (request.iterations + 2) * sizeof(long long));
      Memory aligned = m;
      aligned.to += request.to_at;
      aligned.from += request.from_at;
      if (request.scope == THREAD) launch<THREAD>(aligned, request, me);
      if (request.scope == WARP) launch<WARP>(aligned, request, me);
      if (request.scope == BLOCK) launch<BLOCK>(aligned, request, me);
      if (there_and_back(request.what)) m.counted += request.warmup + request.iterations;
    }
    nvshmem_barrier_all();
    if (me != 0) continue;
    bool streams = request.what == PUT_BANDWIDTH || request.what == GET_BANDWIDTH;
    // No stamps: the kernel did not run.
    if (request.what == NONE || !streams && m.stamps[request.iterations + 1] == 0) {
      printf("times none\n");
    } else if (streams) {
      long long first = m.stamps[0], last = m.stamps[1];
      for (int b = 0; b < request.grid; b++) {
        first = std::min(first, m.stamps[2 * b]);
        last = std::max(last, m.stamps[2 * b + 1]);
      }
      double us = (last - first) / 1000.0 / request.iterations;
      printf("times %.4f %.4f %.4f %.4f\n", us, us, us, us);
    } else {
      int ways = there_and_back(request.what) ? 2 : 1;
      const long long* stamps = m.stamps + 1;
      double scale = m.stamps[0] / (double)(stamps[request.iterations] - stamps[0]) / 1000.0 / ways;
      std::vector<double> turns;
      for (int i = 0; i < request.iterations; i++) turns.push_back((stamps[i + 1] - stamps[i]) * scale);
      std::sort(turns.begin(), turns.end());
      auto at = [&](double q) { return turns[std::max(0, (int)(turns.size() * q + 0.9999) - 1)]; };
      printf("times %.4f %.4f %.4f %.4f\n", turns[0], at(0.5), at(0.99), at(0.999));
    }
    fflush(stdout);
  }
  nvshmem_finalize();
}
