// Measures how a GPU's copies to and from pinned memory depend on preceding copies by CPU threads. A GPU that writes
// lines cached by a core, or reads lines modified there, waits for that core.
//
//   nvcc -std=c++17 -O2 -arch=sm_80 -cudart static -o caches caches.cu && ./caches
//
// Each row shows the preceding operation of the threads, the number of blocks that copy (0 for the copy engine), and
// GB/s in each direction.
#include <cuda_runtime.h>
#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr size_t kBytes = 4 << 20, kPiece = 128 << 10;
constexpr int kThreads = 2, kRounds = 12, kWarm = 2;

#define CUDA(call)                                                                          \
  do {                                                                                      \
    const cudaError_t error_ = call;                                                        \
    if (error_ != cudaSuccess) {                                                            \
      fprintf(stderr, "caches: %s: %s\n", #call, cudaGetErrorString(error_));               \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

__global__ void copy(uint4* to, const uint4* from, size_t count) {
  const size_t step = (size_t)gridDim.x * blockDim.x;
  size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; at + 3 * step < count; at += 4 * step) {
    const uint4 a = from[at], b = from[at + step], c = from[at + 2 * step], d = from[at + 3 * step];
    to[at] = a, to[at + step] = b, to[at + 2 * step] = c, to[at + 3 * step] = d;
  }
  for (; at < count; at += step) to[at] = from[at];
}

void past_the_caches(char* to, const char* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 16) _mm_stream_si128((__m128i*)(to + at), _mm_loadu_si128((const __m128i*)(from + at)));
  _mm_sfence();
}

void by_threads(const std::function<void(size_t)>& piece) {
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; number++)
    threads.emplace_back([&, number] {
      for (size_t at = number * kPiece; at < kBytes; at += kThreads * kPiece) piece(at);
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace

int main() {
  char *gpu, *pinned, *other = (char*)aligned_alloc(4096, kBytes);
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CUDA(cudaMalloc(&gpu, kBytes));
  CUDA(cudaHostAlloc(&pinned, kBytes, cudaHostAllocMapped));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  memset(other, 1, kBytes);
  memset(pinned, 1, kBytes);
  const struct {
    const char* name;
    std::function<void()> run;
  } before[] = {
      {"nothing", [] {}},
      {"copied-out", [&] { by_threads([&](size_t at) { memcpy(other + at, pinned + at, kPiece); }); }},
      {"copied-out-streamed", [&] { by_threads([&](size_t at) { past_the_caches(other + at, pinned + at, kPiece); }); }},
      {"copied-in", [&] { by_threads([&](size_t at) { memcpy(pinned + at, other + at, kPiece); }); }},
      {"copied-in-streamed", [&] { by_threads([&](size_t at) { past_the_caches(pinned + at, other + at, kPiece); }); }},
  };
  printf("before,blocks,to_pinned_gbytes_s,from_pinned_gbytes_s\n");
  for (const auto& what : before)
    for (const int blocks : {0, 7, 14}) {
      double milliseconds[2] = {0, 0};
      for (int round = 0; round < kRounds; round++)
        for (int way = 0; way < 2; way++) {
          char *to = way == 0 ? pinned : gpu, *from = way == 0 ? gpu : pinned;
          what.run();
          CUDA(cudaEventRecord(begin, stream));
          if (blocks == 0)
            CUDA(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream));
          else
            copy<<<blocks, 256, 0, stream>>>((uint4*)to, (const uint4*)from, kBytes / 16);
          CUDA(cudaGetLastError());
          CUDA(cudaEventRecord(end, stream));
          CUDA(cudaStreamSynchronize(stream));
          float took;
          CUDA(cudaEventElapsedTime(&took, begin, end));
          if (round >= kWarm) milliseconds[way] += took / (kRounds - kWarm);
        }
      printf("%s,%d,%.1f,%.1f\n", what.name, blocks, kBytes / milliseconds[0] / 1e6, kBytes / milliseconds[1] / 1e6);
    }
}
