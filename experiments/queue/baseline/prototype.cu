// Reference for `ginlab queue`: a minimal ring of 32-byte commands in CUDA C++, with kernel and consumer.
//
//     nvcc -O3 -arch=native -std=c++17 -shared -Xcompiler -fPIC -o libprototype.so \
//         experiments/queue/baseline/prototype.cu
//     ginlab queue -a ticket -m nbi --prototype ./libprototype.so
//
// Omits payloads, completion, errors, and orderings except that of the slots' words. Every wait is bounded.

#include <cuda_runtime.h>
#include <emmintrin.h>

#include <chrono>
#include <cstdint>
#include <cstring>

namespace {

using Word = unsigned long long;
constexpr int kWords = 4;        // words per command
constexpr uint64_t kBatch = 64;  // commands between two publications of the tail
constexpr uint64_t kAhead = 16;  // distance in commands of the prefetch
constexpr Word kParity = 1ull << 63;

struct Ring {
    Word *slots, *tail;                // host memory
    Word *head, *tail_cache, *poller;  // device memory, a cache line each
    uint64_t capacity;
    uint64_t timeout_ns;
};

__device__ Word load_host(const Word* word) {
    Word value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ Word load_device(const Word* word) {
    Word value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ void store_device(Word* word, Word value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ void release_device(Word* word, Word value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ Word clock_ns() {
    Word now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Waits until the tail is at least `needed`. Only one thread at a time polls host memory for all others.
__device__ bool wait_for_tail(const Ring& ring, Word needed) {
    const Word started = clock_ns();
    unsigned sleep = 32;
    for (unsigned tries = 1;; tries++) {
        if (load_device(ring.tail_cache) >= needed) return true;
        if (load_device(ring.poller) == 0 && atomicCAS(ring.poller, 0ull, 1ull) == 0) {
            const Word tail = load_host(ring.tail);
            if (tail > load_device(ring.tail_cache)) store_device(ring.tail_cache, tail);
            release_device(ring.poller, 0);
            if (tail >= needed) return true;
        } else {
            __nanosleep(sleep);
            sleep = min(2 * sleep, 1024u);
        }
        if (tries % 64 == 0 && clock_ns() - started > ring.timeout_ns) return false;
    }
}

// Pushes one command per active lane, with one atomic add to the head for all of them.
__device__ bool push(const Ring& ring, Word a, Word b, Word c, Word d) {
    const unsigned mask = __activemask();
    const unsigned lane = threadIdx.x & 31, leader = __ffs(mask) - 1, count = __popc(mask);
    Word first = 0;
    if (lane == leader) first = atomicAdd(ring.head, Word(count));
    first = __shfl_sync(mask, first, leader);
    int good = 1;
    if (lane == leader && first + count > load_device(ring.tail_cache) + ring.capacity) {
        good = wait_for_tail(ring, first + count - ring.capacity);
    }
    good = __shfl_sync(mask, good, leader);
    __syncwarp(mask);
    if (!good) return false;
    const Word ticket = first + __popc(mask & ((1u << lane) - 1));
    const Word lap = ticket & ring.capacity ? 0 : kParity;
    Word* slot = ring.slots + (ticket & (ring.capacity - 1)) * kWords;
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(slot), "l"(a | lap), "l"(b | lap) : "memory");
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(slot + 2), "l"(c | lap), "l"(d | lap) : "memory");
    return true;
}

__global__ void produce(Ring ring, unsigned pushes) {
    for (unsigned number = 0; number < pushes; number++) {
        if (!push(ring, number, threadIdx.x, blockIdx.x, 7)) return;
    }
}

using Clock = std::chrono::steady_clock;

// Consumes `expected` commands. Returns the sum of their first words, or -1 if none arrived within the timeout.
int64_t consume(const Ring& ring, uint64_t expected) {
    volatile Word* tail = ring.tail;
    uint64_t cursor = 0, sum = 0, idle = 0;
    auto last = Clock::now();
    while (cursor < expected) {
        // Forces the compiler to reload the slots.
        asm volatile("" ::: "memory");
        const uint64_t first = cursor, end = cursor + kBatch < expected ? cursor + kBatch : expected;
        while (cursor < end) {
            const Word* slot = ring.slots + (cursor & (ring.capacity - 1)) * kWords;
            const __m128i low = _mm_load_si128((const __m128i*)slot), high = _mm_load_si128((const __m128i*)(slot + 2));
            const __m128i lap = _mm_set1_epi64x(cursor & ring.capacity ? 0 : kParity);
            const __m128i other = _mm_or_si128(_mm_xor_si128(low, lap), _mm_xor_si128(high, lap));
            if (_mm_movemask_pd(_mm_castsi128_pd(other)) != 0) break;
            _mm_prefetch((const char*)(slot + kAhead * kWords), _MM_HINT_T0);
            sum += _mm_cvtsi128_si64(low) & ~kParity;
            cursor++;
        }
        if (cursor != first) {
            *tail = cursor;
            idle = 0;
        } else {
            if (++idle == 1) last = Clock::now();
            if (idle % 4096 == 0 && Clock::now() - last > std::chrono::nanoseconds(ring.timeout_ns)) return -1;
        }
    }
    return int64_t(sum);
}

struct Memory {
    Word *host = nullptr, *device = nullptr;
    ~Memory() {
        if (host) cudaFreeHost(host);
        if (device) cudaFree(device);
    }
};

constexpr int kMissing = 1, kCuda = 2, kWrong = 3;

}  // namespace

// Launches a grid in which every thread pushes `pushes` commands. `memory` is kept between calls: null at first, and
// freed by ginlab_prototype_free. Writes the microseconds from the launch to the consumption of the last command, on
// the CPU's clock.
extern "C" int ginlab_prototype(void** memory, unsigned grid, unsigned block, unsigned pushes, unsigned slots,
                                uint64_t timeout_ns, double* microseconds) {
    if (slots == 0 || (slots & (slots - 1)) != 0) return kCuda;
    const size_t bytes = size_t(slots) * kWords * sizeof(Word);
    auto* kept = static_cast<Memory*>(*memory);
    if (!kept) {
        kept = new Memory;
        *memory = kept;
        if (cudaHostAlloc(&kept->host, bytes + 4096, cudaHostAllocMapped) != cudaSuccess) return kCuda;
        if (cudaMalloc(&kept->device, 4096) != cudaSuccess) return kCuda;
    }
    if (!kept->host || !kept->device) return kCuda;
    memset(kept->host, 0, bytes + 4096);
    if (cudaMemset(kept->device, 0, 4096) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) return kCuda;
    Word* tail = kept->host + bytes / sizeof(Word) + 16;
    const Ring ring = {kept->host, tail, kept->device, kept->device + 32, kept->device + 64, slots, timeout_ns};
    const uint64_t threads = uint64_t(grid) * block, expected = threads * pushes;
    const auto started = Clock::now();
    produce<<<grid, block>>>(ring, pushes);
    if (cudaGetLastError() != cudaSuccess) return kCuda;
    const int64_t sum = consume(ring, expected);
    *microseconds = std::chrono::duration<double, std::micro>(Clock::now() - started).count();
    // The kernel's own waits are bounded.
    if (cudaDeviceSynchronize() != cudaSuccess) return kCuda;
    if (sum < 0) return kMissing;
    return uint64_t(sum) == threads * (uint64_t(pushes) * (pushes - 1) / 2) ? 0 : kWrong;
}

extern "C" void ginlab_prototype_free(void* memory) { delete static_cast<Memory*>(memory); }
