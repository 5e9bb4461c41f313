// Measures the parts of a call on one GPU that also holds the peer's memory: barriers and votes of a block, the fence
// by one thread or by all, methods of signalling and waiting. Prints CSV with nanoseconds per
// iteration.
//
//   nvcc -O3 -arch=sm_90 -std=c++17 call_parts.cu -o call-parts
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                   \
  do {                                                                                                \
    cudaError_t error = (call);                                                                       \
    if (error != cudaSuccess) fprintf(stderr, "call-parts: %s: %s\n", #call, cudaGetErrorString(error)), exit(1); \
  } while (0)

__device__ long long nanoseconds() {
  long long t;
  asm volatile("mov.u64 %0,%globaltimer;" : "=l"(t));
  return t;
}

enum Part { BARRIER, VOTE, STORE_FENCE_ONE, STORE_FENCE_ALL, STORE_FENCE_ONE_GPU, STORE_FENCE_ONE_SC, COPY, COPY_PER_LANE, PARTS };
const char* parts[] = {"barrier", "barrier with a vote", "store; barrier; fence by one; barrier", "store; barrier; fence by all; barrier",
                       "as by one, fence of gpu scope", "as by one, fence.sc.sys", "barrier; copy 8 B; barrier", "barrier; copy 16 B a thread; barrier"};

__global__ void __launch_bounds__(1024) part(int what, int turns, char* to, const char* from, long long* out) {
  long long began = 0;
  int bad = 0;
  for (int i = -100; i < turns; i++) {
    if (i == 0) began = nanoseconds();
    switch (what) {
      case BARRIER: __syncthreads(); break;
      case VOTE: bad += __syncthreads_or(bad); break;
      case COPY: case COPY_PER_LANE: {
        __syncthreads();
        if (what == COPY_PER_LANE) ((int4*)to)[threadIdx.x] = ((const volatile int4*)from)[threadIdx.x].x ? int4{1, i, 2, 3} : int4{0, i, 2, 3};
        else if (threadIdx.x == 0) *(long long*)to = *(const volatile long long*)from + i;
        __syncthreads();
        break;
      }
      default:
        if (threadIdx.x == 0) *(volatile long long*)to = i;
        __syncthreads();
        if (what == STORE_FENCE_ALL || threadIdx.x == 0) {
          if (what == STORE_FENCE_ONE_GPU) asm volatile("fence.acq_rel.gpu;" ::: "memory");
          else if (what == STORE_FENCE_ONE_SC) asm volatile("fence.sc.sys;" ::: "memory");
          else asm volatile("fence.acq_rel.sys;" ::: "memory");
        }
        __syncthreads();
    }
  }
  if (threadIdx.x == 0) *out = nanoseconds() - began + bad;
}

// Round trip between two blocks with a word each.
template <bool ADDS, bool ACQUIRES>
__global__ void ping_pong(uint64_t* words, int turns, long long* out) {
  uint64_t *mine = words + 64 * blockIdx.x, *other = words + 64 * (1 - blockIdx.x);
  long long began = 0;
  for (int i = 1; i <= turns; i++) {
    if (i == turns / 10) began = nanoseconds();
    for (int side = 0; side < 2; side++) {
      if ((side == 0) == (blockIdx.x == 0)) {
        if (ADDS) asm volatile("red.relaxed.sys.global.add.u64 [%0], 1;" ::"l"(other) : "memory");
        else asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(other), "l"((uint64_t)i) : "memory");
      } else {
        uint64_t seen;
        // Bounded: 2^24 polls take seconds.
        for (int looks = 0; looks < 1 << 24; looks++) {
          if (ACQUIRES) asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(mine) : "memory");
          else asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(mine) : "memory");
          if (seen >= (uint64_t)i) break;
        }
      }
    }
  }
  if (blockIdx.x == 0) *out = nanoseconds() - began;
}

template <class Launch>
double median(int turns, long long* out, Launch launch) {
  std::vector<double> all;
  for (int i = 0; i < 5; i++) {
    launch();
    CHECK(cudaDeviceSynchronize());
    all.push_back((double)*out / turns);
  }
  std::sort(all.begin(), all.end());
  return all[2];
}

int main() {
  char *to, *from;
  uint64_t* words;
  long long* out;
  CHECK(cudaMalloc(&to, 1 << 20));
  CHECK(cudaMalloc(&from, 1 << 20));
  CHECK(cudaMalloc(&words, 4096));
  CHECK(cudaMallocHost(&out, 8));
  CHECK(cudaMemset(from, 0, 1 << 20));
  const int turns = 5000;
  printf("part,block,ns\n");
  for (int what = 0; what < PARTS; what++)
    for (int block : {32, 256, 1024})
      printf("%s,%d,%.1f\n", parts[what], block, median(turns, out, [&] { part<<<1, block>>>(what, turns, to, from, out); }));
  auto show = [&](const char* name, auto kernel) {
    double ns = median(turns - turns / 10, out, [&] {
      CHECK(cudaMemset(words, 0, 4096));
      kernel<<<2, 1>>>(words, turns, out);
    });
    printf("signal one way: %s,1,%.1f\n", name, ns / 2);
  };
  show("add; acquire", ping_pong<true, true>);
  show("add; relaxed", ping_pong<true, false>);
  show("store; acquire", ping_pong<false, true>);
  show("store; relaxed", ping_pong<false, false>);
}
