// Exercises NCCL's one-sided calls of the host, ncclPutSignal and ncclWaitSignal, in a stream and in a CUDA graph. Each
// put is verified word by word and timed.
//
//   nvcc -std=c++17 -O2 -arch=sm_90 -cudart static -I NCCL/include -o put put.cu -L NCCL/lib -l:libnccl.so.2
//   ginlab nccl --np 2 -- ./put                     rank 0 prints one line of CSV for each case
//
// Ranks are given by RANK, WORLD_SIZE and LOCAL_RANK. They connect by NCCL_COMM_ID, or by MASTER_ADDR and MASTER_PORT.
// Variables: PUT_ITERATIONS (default 200), PUT_REPLAYS of the graph (default 1000), PUT_MOST (largest size in bytes,
// default 64 MiB). NCCL's waits have no limit: limit the program, for example by timeout(1).
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

namespace {

constexpr size_t SIZES[] = {8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20};
constexpr size_t GRAPH_SIZES[] = {8, 4 << 10, 256 << 10};
int rank_ = 0, ranks_ = 1, peer_ = 0, failed_ = 0;
cudaStream_t stream_;
ncclComm_t comm_;
ncclWindow_t target_window_;
uint64_t *source_, *target_, *host_;

[[noreturn]] void stop(const char* what, const char* why) {
  fprintf(stderr, "put: rank %d: %s: %s\n", rank_, what, why);
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

const char* variable(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value && *value ? value : otherwise;
}

// Returns a word of a payload, different for each pair of ranks, index and round.
uint64_t word_of(int from, int to, size_t index, uint64_t round) {
  uint64_t x = index * 0x9e3779b97f4a7c15u ^ (uint64_t)from << 40 ^ (uint64_t)to << 48 ^ round * 0xc2b2ae3d27d4eb4fu;
  return x ^ x >> 29;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void exchange(size_t bytes) {
  NCCL(ncclPutSignal(source_, bytes / 8, ncclUint64, peer_, target_window_, 0, 0, 0, 0, comm_, stream_));
  ncclWaitSignalDesc_t from = {1, peer_, 0, 0};
  NCCL(ncclWaitSignal(1, &from, comm_, stream_));
}

// Waits until the peer has also called this: it has verified what was put, and its target may be overwritten.
void meet() {
  ncclWaitSignalDesc_t from = {1, peer_, 0, 0};
  NCCL(ncclSignal(peer_, 0, 0, 0, comm_, stream_));
  NCCL(ncclWaitSignal(1, &from, comm_, stream_));
  CUDA(cudaStreamSynchronize(stream_));
}

void prepare(size_t bytes, uint64_t round) {
  for (size_t i = 0; i < bytes / 8; i++) host_[i] = word_of(rank_, peer_, i, round);
  CUDA(cudaMemcpyAsync(source_, host_, bytes, cudaMemcpyHostToDevice, stream_));
  CUDA(cudaMemsetAsync(target_, 0xee, bytes, stream_));
  CUDA(cudaStreamSynchronize(stream_));
  meet();
}

size_t wrong_words(size_t bytes, uint64_t round) {
  CUDA(cudaMemcpyAsync(host_, target_, bytes, cudaMemcpyDeviceToHost, stream_));
  CUDA(cudaStreamSynchronize(stream_));
  size_t wrong = 0;
  for (size_t i = 0; i < bytes / 8; i++) wrong += host_[i] != word_of(peer_, rank_, i, round);
  meet();
  return wrong;
}

void row(const char* name, size_t bytes, int times, double took, size_t wrong) {
  failed_ += wrong != 0;
  if (rank_ != 0 && wrong == 0) return;
  const double us = took * 1e6 / times;
  const std::string status = wrong == 0 ? "ok" : "rank " + std::to_string(rank_) + ": wrong words";
  printf("%s,%d,%zu,%d,%.2f,%.3f,%zu,%s\n", name, ranks_, bytes, times, us, bytes / us / 1e3, wrong, status.c_str());
  fflush(stdout);
}

void in_stream(size_t bytes, int times, uint64_t round) {
  prepare(bytes, round);
  for (int i = 0; i < 5; i++) exchange(bytes);
  CUDA(cudaStreamSynchronize(stream_));
  const double begun = seconds();
  for (int i = 0; i < times; i++) exchange(bytes);
  CUDA(cudaStreamSynchronize(stream_));
  const double took = seconds() - begun;
  row("c_put_signal", bytes, times, took, wrong_words(bytes, round));
}

// Each tenth of the replays puts another payload.
void in_graph(size_t bytes, int replays, uint64_t round) {
  constexpr int PARTS = 10;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  exchange(bytes);
  CUDA(cudaStreamEndCapture(stream_, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  double took = 0;
  size_t wrong = 0;
  const int each = replays / PARTS > 0 ? replays / PARTS : 1;
  for (int part = 0; part < PARTS; part++) {
    prepare(bytes, round + part);
    const double begun = seconds();
    for (int i = 0; i < each; i++) CUDA(cudaGraphLaunch(executable, stream_));
    CUDA(cudaStreamSynchronize(stream_));
    took += seconds() - begun;
    wrong += wrong_words(bytes, round + part);
  }
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  row("c_put_signal_graph", bytes, each * PARTS, took, wrong);
}

}  // namespace

int main() {
  rank_ = atoi(variable("RANK", "0"));
  ranks_ = atoi(variable("WORLD_SIZE", "1"));
  peer_ = rank_ ^ 1;
  const int iterations = atoi(variable("PUT_ITERATIONS", "200")), replays = atoi(variable("PUT_REPLAYS", "1000"));
  const size_t most = strtoull(variable("PUT_MOST", "67108864"), nullptr, 10);
  if (ranks_ < 2 || ranks_ % 2) stop("ranks", "an even number of them: RANK, WORLD_SIZE");
  if (most < 8) stop("PUT_MOST", "at least 8");
  if (!getenv("NCCL_COMM_ID")) {
    const std::string id = std::string(variable("MASTER_ADDR", "127.0.0.1")) + ":" + std::to_string(atoi(variable("MASTER_PORT", "29500")) + 1);
    setenv("NCCL_COMM_ID", id.c_str(), 1);
  }
  int gpus = 0;
  CUDA(cudaGetDeviceCount(&gpus));
  // Leave the cores to the threads that move bytes: do not spin while waiting for the stream.
  CUDA(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  CUDA(cudaSetDevice(atoi(variable("LOCAL_RANK", "0")) % gpus));
  CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  NCCL(ncclCommInitRank(&comm_, ranks_, id, rank_));
  int version = 0;
  NCCL(ncclGetVersion(&version));
  fprintf(stderr, "put: rank %d of %d, NCCL %d\n", rank_, ranks_, version);
  // Source and target must be in symmetric windows of memory that ncclMemAlloc has allocated.
  ncclWindow_t source_window;
  NCCL(ncclMemAlloc((void**)&source_, most));
  NCCL(ncclMemAlloc((void**)&target_, most));
  NCCL(ncclCommWindowRegister(comm_, source_, most, &source_window, NCCL_WIN_COLL_SYMMETRIC));
  NCCL(ncclCommWindowRegister(comm_, target_, most, &target_window_, NCCL_WIN_COLL_SYMMETRIC));
  CUDA(cudaMallocHost(&host_, most));

  if (rank_ == 0) printf("case,ranks,bytes,iterations,time_us,gbytes_s,wrong,status\n");
  uint64_t round = 0;
  for (size_t bytes : SIZES)
    if (bytes <= most) in_stream(bytes, bytes > 65536 && iterations >= 10 ? iterations / 10 : iterations, ++round);
  for (size_t bytes : GRAPH_SIZES)
    if (bytes <= most) in_graph(bytes, replays, round += 10);

  NCCL(ncclCommWindowDeregister(comm_, source_window));
  NCCL(ncclCommWindowDeregister(comm_, target_window_));
  NCCL(ncclMemFree(source_));
  NCCL(ncclMemFree(target_));
  NCCL(ncclCommDestroy(comm_));
  return failed_ ? 1 : 0;
}
