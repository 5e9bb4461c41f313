// Kernels of `ginlab ipc` in CUDA C++, to be compiled by nvcc. They have the same structure, names and argument as the
// kernels in Rust.
//
//   nvcc -O3 -arch=native -cubin -o ipc.cubin experiments/ipc/baseline/ipc.cu
//   ginlab ipc --cuda-module ipc.cubin
//
// ginlab interleaves them with its own kernels in one process, as the cases cuda-c++ and cuda-c++-int-loop. The
// argument must match IpcArgs in kernels/src/ipc.rs.
#include <cstdint>

struct IpcArgs {
  uint8_t* destination;
  const uint8_t* source;
  uint64_t bytes;
  uint32_t seed;
  uint32_t xor_;
  uint32_t* sums;
  unsigned long long* counter;
  unsigned long long* flag;
  unsigned long long* taken;
};
static_assert(sizeof(IpcArgs) == 64, "as IpcArgs of kernels/src/ipc.rs");

constexpr uint32_t kStep = 0x9E3779B9;
constexpr int kUnroll = 8;

__device__ uint32_t Word(uint32_t seed, uint64_t index) { return seed + static_cast<uint32_t>(index) * kStep; }
__device__ uint8_t Byte(uint32_t seed, uint64_t offset) { return Word(seed, offset / 4) >> (offset % 4 * 8); }

// Vectors of 4, 8 and 16 bytes.
template <int W>
struct Vector;
template <>
struct Vector<1> {
  using Type = uint32_t;
  static __device__ Type Pattern(uint32_t first) { return first; }
  static __device__ uint32_t Sum(Type v) { return v; }
};
template <>
struct Vector<2> {
  using Type = uint2;
  static __device__ Type Pattern(uint32_t first) { return make_uint2(first, first + kStep); }
  static __device__ uint32_t Sum(Type v) { return v.x + v.y; }
};
template <>
struct Vector<4> {
  using Type = uint4;
  static __device__ Type Pattern(uint32_t first) {
    return make_uint4(first, first + kStep, first + 2 * kStep, first + 3 * kStep);
  }
  static __device__ uint32_t Sum(Type v) { return v.x + v.y + v.z + v.w; }
};

__device__ uint64_t GridThreads() { return static_cast<uint64_t>(gridDim.x) * blockDim.x; }
__device__ uint64_t ThisThread() { return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Calls `visit` for the bytes after the last whole vector. Only the first block does so.
template <class Visit>
__device__ void EachByteBehind(uint64_t bytes, uint64_t width, Visit visit) {
  if (blockIdx.x != 0) return;
  for (uint64_t offset = bytes / width * width + threadIdx.x; offset < bytes; offset += blockDim.x) visit(offset);
}

__device__ void Signal(const IpcArgs& args) {
  if (!args.flag) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  const unsigned long long done = atomicAdd(args.counter, 1ull) + 1;
  if (done % gridDim.x == 0) {
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(args.flag), "l"(done / gridDim.x) : "memory");
  }
}

template <int W>
__device__ void Write(const IpcArgs& args) {
  using V = Vector<W>;
  auto* target = reinterpret_cast<typename V::Type*>(args.destination);
  const uint64_t threads = GridThreads(), vectors = args.bytes / (4 * W);
  uint64_t index = ThisThread();
  const uint32_t step = static_cast<uint32_t>(threads) * W * kStep;
  uint32_t value = Word(args.seed, index * W);
  for (; index + (kUnroll - 1) * threads < vectors; index += kUnroll * threads, value += kUnroll * step) {
#pragma unroll
    for (int round = 0; round < kUnroll; ++round) target[index + round * threads] = V::Pattern(value + step * round);
  }
#pragma unroll
  for (int round = 0; round < kUnroll; ++round) {
    const uint64_t at = index + round * threads;
    if (at < vectors) target[at] = V::Pattern(Word(args.seed, at * W));
  }
  EachByteBehind(args.bytes, 4 * W, [&](uint64_t offset) { args.destination[offset] = Byte(args.seed, offset); });
  Signal(args);
}

template <int W>
__device__ void Copy(const IpcArgs& args) {
  using T = typename Vector<W>::Type;
  const auto* source = reinterpret_cast<const T*>(args.source);
  auto* target = reinterpret_cast<T*>(args.destination);
  const uint64_t threads = GridThreads(), vectors = args.bytes / (4 * W);
  uint64_t index = ThisThread();
  T held[kUnroll];
  for (; index + (kUnroll - 1) * threads < vectors; index += kUnroll * threads) {
#pragma unroll
    for (int round = 0; round < kUnroll; ++round) held[round] = source[index + round * threads];
#pragma unroll
    for (int round = 0; round < kUnroll; ++round) target[index + round * threads] = held[round];
  }
#pragma unroll
  for (int round = 0; round < kUnroll; ++round)
    if (index + round * threads < vectors) held[round] = source[index + round * threads];
#pragma unroll
  for (int round = 0; round < kUnroll; ++round)
    if (index + round * threads < vectors) target[index + round * threads] = held[round];
  EachByteBehind(args.bytes, 4 * W, [&](uint64_t offset) { args.destination[offset] = args.source[offset]; });
  Signal(args);
}

template <int W>
__device__ void Read(const IpcArgs& args) {
  using V = Vector<W>;
  using T = typename V::Type;
  const auto* source = reinterpret_cast<const T*>(args.source);
  const uint64_t threads = GridThreads(), vectors = args.bytes / (4 * W);
  uint64_t index = ThisThread();
  uint32_t sum = 0;
  T held[kUnroll];
  for (; index + (kUnroll - 1) * threads < vectors; index += kUnroll * threads) {
#pragma unroll
    for (int round = 0; round < kUnroll; ++round) held[round] = source[index + round * threads];
#pragma unroll
    for (int round = 0; round < kUnroll; ++round) sum += V::Sum(held[round]);
  }
#pragma unroll
  for (int round = 0; round < kUnroll; ++round)
    if (index + round * threads < vectors) held[round] = source[index + round * threads];
#pragma unroll
  for (int round = 0; round < kUnroll; ++round)
    if (index + round * threads < vectors) sum += V::Sum(held[round]);
  EachByteBehind(args.bytes, 4 * W, [&](uint64_t offset) {
    const uint32_t value = args.source[offset];
    sum += offset < args.bytes / 4 * 4 ? value << (offset % 4 * 8) : value;
  });
  args.sums[ThisThread()] = sum;
}

#define KERNELS(name, body)                                                                 \
  extern "C" __global__ void ipc_##name##_4(const __grid_constant__ IpcArgs args) { body<1>(args); }  \
  extern "C" __global__ void ipc_##name##_8(const __grid_constant__ IpcArgs args) { body<2>(args); }  \
  extern "C" __global__ void ipc_##name##_16(const __grid_constant__ IpcArgs args) { body<4>(args); }

KERNELS(write, Write)
KERNELS(copy, Copy)
KERNELS(read, Read)

// Loop of ginlab's predecessor, not unrolled by hand.
extern "C" __global__ void ipc_int_loop(const __grid_constant__ IpcArgs args) {
  auto* target = reinterpret_cast<uint32_t*>(args.destination);
  const uint64_t threads = GridThreads(), count = args.bytes / 4;
  for (uint64_t index = ThisThread(); index < count; index += threads) target[index] = Word(args.seed, index);
  EachByteBehind(args.bytes, 4, [&](uint64_t offset) { args.destination[offset] = Byte(args.seed, offset); });
  __threadfence_system();
  Signal(args);
}
