// Exercises NCCL's GIN from kernels: puts, signals, counters, values, gets and an all-to-all. Each is verified word by
// word and timed.
//
//   nvcc -std=c++17 -O2 -arch=sm_90 -cudart static -I NCCL/include -o gin gin.cu -L NCCL/lib -l:libnccl.so.2
//   ginlab nccl --np 2 -- ./gin                     rank 0 prints one line of CSV for each case
//
// Ranks are given by RANK, WORLD_SIZE and LOCAL_RANK. They connect by NCCL_COMM_ID, or by MASTER_ADDR and MASTER_PORT.
// Variables: GIN_ITERATIONS (default 200), GIN_CASES (a list of put, lanes, value, window, get, all; default: all of
// them), GIN_DEADLINE_S (limit of every wait in a kernel, default 20).
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <unistd.h>

namespace {

constexpr size_t WINDOW = 16u << 20;
constexpr int SIGNALS = 8, COUNTERS = 2;
int rank_ = 0, ranks_ = 1;
cudaStream_t stream_;

[[noreturn]] void stop(const char* what, const char* why) {
  fprintf(stderr, "gin: rank %d: %s: %s\n", rank_, what, why);
  fflush(nullptr);
  _exit(1);
}
void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) stop(what, cudaGetErrorString(error));
}
void check_nccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) stop(what, (std::string(ncclGetErrorString(result)) + "; " + ncclGetLastError(nullptr)).c_str());
}
#define CUDA(call) check_cuda((call), #call)
#define NCCL(call) check_nccl((call), #call)

// Returns a word of a payload, different for each pair of ranks, index and round.
__host__ __device__ inline uint32_t word_of(int from, int to, size_t index, uint32_t round) {
  uint32_t x = (uint32_t)index * 0x9e3779b9u ^ (uint32_t)(from * 0x85ebca6b) ^ (uint32_t)(to * 0xc2b2ae35) ^ round * 0x27d4eb2fu;
  return x ^ x >> 15;
}

__device__ inline uint64_t now() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Results of a kernel: the first result other than success and its line, the number of wrong words, nanoseconds.
struct Out {
  unsigned long long result, line, wrong, ns;
};
#define TRY(call)                                                   \
  do {                                                              \
    ncclResult_t tried = (call);                                    \
    if (tried != ncclSuccess && out->result == 0) {                 \
      out->result = tried;                                          \
      out->line = __LINE__;                                         \
    }                                                               \
  } while (0)

constexpr auto ACQUIRE = cuda::memory_order_acquire;

// Waits with a deadline in GPU cycles. NCCL before 2.32 has no deadlines, so that signals and counters are polled here.
// A flush, which follows them, is then only limited by the caller of this program.
template <typename Coop>
__device__ ncclResult_t wait_signal(ncclGin const& gin, Coop coop, ncclGinSignal_t signal, uint64_t least, uint64_t deadline) {
#if NCCL_VERSION_CODE >= 23200
  return gin.waitSignal(coop, signal, least, 64, ACQUIRE, deadline);
#else
  const long long begun = clock64();
  ncclResult_t result = ncclSuccess;
  while (gin.readSignal(signal, 64, ACQUIRE) < least && result == ncclSuccess)
    if ((uint64_t)(clock64() - begun) > deadline) result = ncclInternalError;
  coop.sync();
  return result;
#endif
}
template <typename Coop>
__device__ ncclResult_t wait_counter(ncclGin const& gin, Coop coop, ncclGinCounter_t counter, uint64_t least, uint64_t deadline) {
#if NCCL_VERSION_CODE >= 23200
  return gin.waitCounter(coop, counter, least, 56, ACQUIRE, deadline);
#else
  const long long begun = clock64();
  ncclResult_t result = ncclSuccess;
  while (gin.readCounter(counter, 56, ACQUIRE) < least && result == ncclSuccess)
    if ((uint64_t)(clock64() - begun) > deadline) result = ncclInternalError;
  coop.sync();
  return result;
#endif
}
template <typename Coop>
__device__ ncclResult_t flush(ncclGin const& gin, Coop coop, uint64_t deadline) {
#if NCCL_VERSION_CODE >= 23200
  return gin.flush(coop, ACQUIRE, ncclGin_None{}, deadline);
#else
  (void)deadline;
  gin.flush(coop, ACQUIRE);
  return ncclSuccess;
#endif
}

__device__ void meet(ncclDevComm const& comm, ncclGin const& gin, Out* out, uint64_t deadline) {
  ncclGinBarrierSession<ncclCoopCta> barrier{ncclCoopCta(), gin, ncclTeamTagWorld(), 0};
  TRY(barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::None, deadline));
  (void)comm;
}

__device__ void check(const uint32_t* got, size_t words, int from, int to, uint32_t round, Out* out) {
  unsigned long long wrong = 0;
  for (size_t i = threadIdx.x; i < words; i += blockDim.x)
    wrong += ((volatile const uint32_t*)got)[i] != word_of(from, to, i, round);
  if (wrong) atomicAdd(&out->wrong, wrong);
}

// Untimed rounds. The first put of a process waits for the driver's initialization (1 to 2 ms), which the last rank to
// enter a barrier would still have to do after it.
constexpr int BEFORE = 10;

// Pairs of ranks put `bytes` to each other `times` times, and wait for the peer's put each time.
__global__ void put(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, uint32_t* got, size_t bytes, int times, uint32_t round, Out* out,
                    uint64_t deadline) {
  ncclGin gin{comm, 0};
  const int me = comm.rank, peer = me ^ 1;
  __shared__ uint64_t base;
  if (threadIdx.x == 0) base = gin.readSignal(0);
  meet(comm, gin, out, deadline);
  if (threadIdx.x == 0) {
    uint64_t begun = 0;
    for (int i = 1; i <= BEFORE + times && out->result == 0; i++) {
      if (i == BEFORE + 1) begun = now();
      gin.put(ncclTeamWorld(comm), peer, to, 0, from, 0, bytes, ncclGin_WeakSignalInc{0});
      TRY(wait_signal(gin, ncclCoopThread(), 0, base + i, deadline));
    }
    TRY(flush(gin, ncclCoopThread(), deadline));
    out->ns = now() - begun;
  }
  __syncthreads();
  check(got, bytes / 4, peer, me, round, out);
}

// Every lane of a warp puts 4 KiB with a signal and a counter.
__global__ void lanes(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, uint32_t* got, uint32_t round, Out* out, uint64_t deadline) {
  ncclGin gin{comm, 1};
  const int me = comm.rank, peer = me ^ 1, lane = threadIdx.x;
  __shared__ uint64_t base, counted;
  if (lane == 0) {
    base = gin.readSignal(1);
    counted = gin.readCounter(0);
  }
  meet(comm, gin, out, deadline);
  const uint64_t begun = now();
  gin.put(ncclTeamWorld(comm), peer, to, lane * 4096, from, lane * 4096, 4096, ncclGin_WeakSignalInc{1}, ncclGin_WeakCounterInc{0});
  __syncwarp();
  if (lane == 0) {
    TRY(wait_signal(gin, ncclCoopThread(), 1, base + 32, deadline));
    TRY(wait_counter(gin, ncclCoopThread(), 0, counted + 32, deadline));
    out->ns = now() - begun;
  }
  __syncwarp();
  check(got, 32 * 1024, peer, me, round, out);
}

// Sends a value to the peer and waits for one in return, `times` times.
__global__ void value(ncclDevComm comm, ncclWindow_t to, uint64_t* got, int times, Out* out, uint64_t deadline) {
  ncclGin gin{comm, 0};
  const int me = comm.rank, peer = me ^ 1;
  __shared__ uint64_t base;
  if (threadIdx.x == 0) base = gin.readSignal(2);
  meet(comm, gin, out, deadline);
  if (threadIdx.x != 0) return;
  uint64_t begun = 0;
  for (int i = 1; i <= BEFORE + times && out->result == 0; i++) {
    if (i == BEFORE + 1) begun = now();
    const uint64_t mine = (uint64_t)i << 20 | (uint64_t)me << 8 | 0xa5, theirs = (uint64_t)i << 20 | (uint64_t)peer << 8 | 0xa5;
    if (me % 2 == 0) gin.putValue(ncclTeamWorld(comm), peer, to, 0, mine, ncclGin_WeakSignalInc{2});
    TRY(wait_signal(gin, ncclCoopThread(), 2, base + i, deadline));
    if (*(volatile uint64_t*)got != theirs) out->wrong++;
    if (me % 2 == 1) gin.putValue(ncclTeamWorld(comm), peer, to, 0, mine, ncclGin_WeakSignalInc{2});
  }
  out->ns = now() - begun;
}

// The even rank puts `times` times without waiting, all to the same place. The odd rank waits for all signals.
__global__ void window(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, uint32_t* got, size_t bytes, int times, uint32_t round, Out* out,
                       uint64_t deadline) {
  ncclGin gin{comm, 0};
  const int me = comm.rank, peer = me ^ 1;
  __shared__ uint64_t base;
  if (threadIdx.x == 0) base = gin.readSignal(3);
  meet(comm, gin, out, deadline);
  if (threadIdx.x == 0) {
    const uint64_t begun = now();
    if (me % 2 == 0) {
      // All puts have the same bytes, so that puts in flight to the same place do not conflict.
      for (int i = 0; i < times; i++)
        gin.put(ncclTeamWorld(comm), peer, to, 0, from, 0, bytes, ncclGin_WeakSignalAdd{3, 3});
      TRY(flush(gin, ncclCoopThread(), deadline));
    } else {
      TRY(wait_signal(gin, ncclCoopThread(), 3, base + 3 * (uint64_t)times, deadline));
    }
    out->ns = now() - begun;
  }
  __syncthreads();
  if (me % 2 == 1) check(got, bytes / 4, peer, me, round, out);
}

__global__ void get(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, uint32_t* got, size_t bytes, uint32_t round, Out* out,
                    uint64_t deadline) {
  ncclGin gin{comm, 0};
  const int me = comm.rank, peer = me ^ 1;
  meet(comm, gin, out, deadline);
  if (threadIdx.x == 0) {
    const uint64_t begun = now();
    gin.get(ncclTeamWorld(comm), peer, from, 0, to, 0, bytes);
    TRY(flush(gin, ncclCoopThread(), deadline));
    out->ns = now() - begun;
  }
  __syncthreads();
  check(got, bytes / 4, peer, me, round, out);
  // The peer reads this rank's source; wait until it has finished.
  meet(comm, gin, out, deadline);
}

// All-to-all, `times` times with a barrier before each.
__global__ void all(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, const uint32_t* got, size_t bytes, int times, uint32_t round, Out* out,
                    uint64_t deadline) {
  ncclGin gin{comm, 0};
  const int me = comm.rank, n = comm.nRanks;
  __shared__ uint64_t base;
  if (threadIdx.x == 0) base = gin.readSignal(4);
  __syncthreads();
  uint64_t begun = 0;
  for (int i = 1; i <= BEFORE + times; i++) {
    meet(comm, gin, out, deadline);
    if (i == BEFORE + 1) begun = now();
    for (int to_rank = threadIdx.x; to_rank < n; to_rank += blockDim.x)
      gin.put(ncclTeamWorld(comm), to_rank, to, me * bytes, from, to_rank * bytes, bytes, ncclGin_WeakSignalInc{4});
    TRY(wait_signal(gin, ncclCoopCta(), 4, base + (uint64_t)i * n, deadline));
    TRY(flush(gin, ncclCoopCta(), deadline));
    __syncthreads();
    if (out->result != 0) break;
  }
  if (threadIdx.x == 0) out->ns = now() - begun;
  for (int from_rank = 0; from_rank < n; from_rank++)
    check(got + from_rank * bytes / 4, bytes / 4, from_rank, me, round, out);
}

const char* variable(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value && *value ? value : otherwise;
}

}  // namespace

int main() {
  rank_ = atoi(variable("RANK", "0"));
  ranks_ = atoi(variable("WORLD_SIZE", "1"));
  const int iterations = atoi(variable("GIN_ITERATIONS", "200"));
  const std::string wanted = std::string(",") + variable("GIN_CASES", "put,lanes,value,window,get,all") + ",";
  auto asked = [&](const char* name) { return wanted.find(std::string(",") + name + ",") != std::string::npos; };
  if (ranks_ < 2 || ranks_ % 2) stop("ranks", "an even number of them: RANK, WORLD_SIZE");
  if (!getenv("NCCL_COMM_ID")) {
    const std::string id = std::string(variable("MASTER_ADDR", "127.0.0.1")) + ":" + std::to_string(atoi(variable("MASTER_PORT", "29500")) + 1);
    setenv("NCCL_COMM_ID", id.c_str(), 1);
  }
  int gpus = 0;
  CUDA(cudaGetDeviceCount(&gpus));
  // Leave the cores to the threads that move bytes: do not spin while waiting for a kernel.
  CUDA(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  CUDA(cudaSetDevice(atoi(variable("LOCAL_RANK", "0")) % gpus));
  int khz = 0;
  CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, atoi(variable("LOCAL_RANK", "0")) % gpus));
  const uint64_t deadline = (uint64_t)khz * 1000 * strtoull(variable("GIN_DEADLINE_S", "20"), nullptr, 10);

  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, ranks_, id, rank_));
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  NCCL(ncclCommQueryProperties(comm, &properties));
  if (rank_ == 0) {
    int version = 0;
    NCCL(ncclGetVersion(&version));
    fprintf(stderr, "gin: NCCL %d, %d ranks, GIN type %d, device API %d\n", version, ranks_, (int)properties.ginType, (int)properties.deviceApiSupport);
  }
  if (properties.ginType == 0) stop("NCCL offers no GIN", "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL says why");

  uint32_t *from, *got;
  NCCL(ncclMemAlloc((void**)&from, WINDOW));
  NCCL(ncclMemAlloc((void**)&got, WINDOW));
  ncclWindow_t from_window, to_window;
  NCCL(ncclCommWindowRegister(comm, from, WINDOW, &from_window, NCCL_WIN_COLL_SYMMETRIC));
  NCCL(ncclCommWindowRegister(comm, got, WINDOW, &to_window, NCCL_WIN_COLL_SYMMETRIC));
  ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  needs.worldGinBarrierCount = 1;
  needs.ginSignalCount = SIGNALS;
  needs.ginCounterCount = COUNTERS;
  needs.ginContextCount = 2;
  needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  needs.ginStrongSignalsRequired = false;
  needs.ginVaSignalsRequired = false;
  ncclDevComm device;
  NCCL(ncclDevCommCreate(comm, &needs, &device));
  CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  Out* out;
  CUDA(cudaMalloc(&out, sizeof *out));
  uint32_t* host = nullptr;
  CUDA(cudaMallocHost(&host, WINDOW));

  if (rank_ == 0) printf("case,ranks,bytes,iterations,time_us,gbytes_s,wrong,status\n");
  int failed = 0;
  uint32_t round = 0;
  // `by_rank`: whether the source has a part per target rank. `moved`: bytes that one rank sends per iteration.
  auto run = [&](const char* name, size_t bytes, int times, double moved, bool by_rank, auto launch) {
    round++;
    const size_t words = bytes / 4;
    const size_t parts = by_rank ? ranks_ : 1;
    for (size_t part = 0; part < parts; part++)
      for (size_t i = 0; i < words; i++) host[part * words + i] = word_of(rank_, by_rank ? (int)part : rank_ ^ 1, i, round);
    CUDA(cudaMemcpyAsync(from, host, parts * bytes, cudaMemcpyHostToDevice, stream_));
    CUDA(cudaMemsetAsync(got, 0xee, parts * bytes, stream_));
    CUDA(cudaMemsetAsync(out, 0, sizeof *out, stream_));
    CUDA(cudaStreamSynchronize(stream_));
    launch(round);
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(stream_));
    Out left;
    CUDA(cudaMemcpyAsync(&left, out, sizeof left, cudaMemcpyDeviceToHost, stream_));
    CUDA(cudaStreamSynchronize(stream_));
    const bool good = left.result == 0 && left.wrong == 0;
    failed += !good;
    const double us = left.ns / 1e3 / times;
    if (rank_ == 0 || !good) {
      printf("%s,%d,%zu,%d,%.2f,%.3f,%llu,%s\n", name, ranks_, bytes, times, us, us > 0 ? moved / us / 1e3 : 0.0, left.wrong,
             good ? "ok" : ("rank " + std::to_string(rank_) + ": result " + std::to_string(left.result) + " at line " + std::to_string(left.line)).c_str());
      fflush(stdout);
    }
    if (left.result != 0) stop(name, "a wait timed out: the ranks are out of step");
  };
  if (asked("put"))
    for (size_t bytes : {(size_t)8, (size_t)64, (size_t)4096, (size_t)65536, (size_t)1 << 20, (size_t)4 << 20}) {
      const int times = bytes > 65536 ? 20 : iterations;
      run("put", bytes, times, (double)bytes, false,
          [&](uint32_t r) { put<<<1, 256, 0, stream_>>>(device, from_window, to_window, got, bytes, times, r, out, deadline); });
    }
  if (asked("lanes"))
    run("lanes", 32 * 4096, 1, 32.0 * 4096, false,
        [&](uint32_t r) { lanes<<<1, 32, 0, stream_>>>(device, from_window, to_window, got, r, out, deadline); });
  if (asked("value"))
    run("value", 8, iterations, 8, false,
        [&](uint32_t) { value<<<1, 32, 0, stream_>>>(device, to_window, (uint64_t*)got, iterations, out, deadline); });
  if (asked("window"))
    for (size_t bytes : {(size_t)4096, (size_t)1 << 20, (size_t)4 << 20}) {
      const int times = bytes > 65536 ? 16 : 64;
      run("window", bytes, times, (double)bytes, false,
          [&](uint32_t r) { window<<<1, 256, 0, stream_>>>(device, from_window, to_window, got, bytes, times, r, out, deadline); });
    }
  if (asked("get"))
    for (size_t bytes : {(size_t)8, (size_t)1 << 20})
      run("get", bytes, 1, (double)bytes, false,
          [&](uint32_t r) { get<<<1, 256, 0, stream_>>>(device, from_window, to_window, got, bytes, r, out, deadline); });
  if (asked("all"))
    for (size_t bytes : {(size_t)1024, (size_t)65536}) {
      const int times = iterations / 4 + 1;
      run("all", bytes, times, (double)bytes * ranks_, true,
          [&](uint32_t r) { all<<<1, 64, 0, stream_>>>(device, from_window, to_window, got, bytes, times, r, out, deadline); });
    }
  NCCL(ncclDevCommDestroy(comm, &device));
  NCCL(ncclCommWindowDeregister(comm, from_window));
  NCCL(ncclCommWindowDeregister(comm, to_window));
  NCCL(ncclMemFree(from));
  NCCL(ncclMemFree(got));
  NCCL(ncclCommDestroy(comm));
  return failed ? 1 : 0;
}
