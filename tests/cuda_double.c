// In the place of libcuda, for a test of the NCCL plugin (host/nccl_plugin/tests/double/driver.rs) and nothing else. It has the functions that the
// plugin calls while it opens and closes the copies of a communicator. Device memory is memory of the host, and streams finish at once. It counts
// what is not given back, and lets one call fail.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, ALREADY_REGISTERED = 712 };
enum { STREAMS, EVENTS, PINNED, REGISTERED, DEVICE, KINDS };

static int made[KINDS];
static int wrong;
static int calls;
static int failing;
static uint64_t registered[16];
static int context;

// Counts a call that may fail; whether it does.
static int fails(void) {
    calls++;
    return calls == failing;
}

// From now on the call of this number fails, from 1; 0: none.
void double_fail(int call) {
    calls = 0;
    failing = call;
    wrong = 0;
}

int double_calls(void) {
    return calls;
}

// Numbers of resources that were not freed or were misused, one per kind.
const char *double_left(void) {
    static char text[128];
    snprintf(text, sizeof text, "streams %d events %d pinned %d registered %d device %d wrong %d", made[STREAMS], made[EVENTS], made[PINNED],
             made[REGISTERED], made[DEVICE], wrong);
    return text;
}

int cuGetErrorName(int result, const char **name) {
    *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    return SUCCESS;
}

int cuCtxGetCurrent(void **current) {
    *current = &context;
    return SUCCESS;
}

int cuCtxSetCurrent(void *current) {
    wrong += current != &context;
    return fails() ? OUT_OF_MEMORY : SUCCESS;
}

int cuCtxPushCurrent_v2(void *current) {
    wrong += current != &context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **current) {
    *current = &context;
    return SUCCESS;
}

int cuCtxGetDevice(int *device) {
    *device = 0;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)attribute;
    *value = device == 0;
    return SUCCESS;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    (void)least;
    *greatest = -5;
    return fails() ? OUT_OF_MEMORY : SUCCESS;
}

static int make(int kind, void **out, size_t bytes) {
    if (fails()) {
        return OUT_OF_MEMORY;
    }
    *out = malloc(bytes);
    made[kind]++;
    return SUCCESS;
}

static int end(int kind, void *one) {
    wrong += one == NULL;
    made[kind] -= one != NULL;
    free(one);
    return SUCCESS;
}

int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    return make(STREAMS, stream, 1);
}

int cuStreamDestroy_v2(void *stream) {
    return end(STREAMS, stream);
}

int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    return make(EVENTS, event, 1);
}

int cuEventDestroy_v2(void *event) {
    return end(EVENTS, event);
}

int cuEventRecord(void *event, void *stream) {
    (void)event, (void)stream;
    return fails() ? OUT_OF_MEMORY : SUCCESS;
}

int cuEventQuery(void *event) {
    (void)event;
    return SUCCESS;
}

int cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
    (void)flags;
    return make(PINNED, host, bytes);
}

// Resources that were never allocated are also freed, if their allocation has failed.
int cuMemFreeHost(void *host) {
    return host == NULL ? SUCCESS : end(PINNED, host);
}

int cuMemAlloc_v2(uint64_t *device, size_t bytes) {
    void *memory = NULL;
    int result = make(DEVICE, &memory, bytes);
    if (result == SUCCESS) {
        *device = (uint64_t)(uintptr_t)memory;
    }
    return result;
}

int cuMemFree_v2(uint64_t device) {
    return device == 0 ? SUCCESS : end(DEVICE, (void *)(uintptr_t)device);
}

int cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags) {
    (void)bytes, (void)flags;
    if (fails()) {
        return OUT_OF_MEMORY;
    }
    for (int index = 0; index < 16; index++) {
        if (registered[index] == (uint64_t)(uintptr_t)host) {
            return ALREADY_REGISTERED;
        }
    }
    for (int index = 0; index < 16; index++) {
        if (registered[index] == 0) {
            registered[index] = (uint64_t)(uintptr_t)host;
            made[REGISTERED]++;
            return SUCCESS;
        }
    }
    return OUT_OF_MEMORY;
}

int cuMemHostUnregister(void *host) {
    for (int index = 0; index < 16; index++) {
        if (registered[index] == (uint64_t)(uintptr_t)host) {
            registered[index] = 0;
            made[REGISTERED]--;
            return SUCCESS;
        }
    }
    wrong++;
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t device, const void *host, size_t bytes, void *stream) {
    wrong += stream == NULL;
    if (fails()) {
        return OUT_OF_MEMORY;
    }
    memcpy((void *)(uintptr_t)device, host, bytes);
    return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void *host, uint64_t device, size_t bytes, void *stream) {
    wrong += stream == NULL;
    if (fails()) {
        return OUT_OF_MEMORY;
    }
    memcpy(host, (void *)(uintptr_t)device, bytes);
    return SUCCESS;
}

// Operations of 48 bytes: only writes of words.
int cuStreamBatchMemOp_v2(void *stream, unsigned count, const uint64_t *operations, unsigned flags) {
    (void)flags;
    wrong += stream == NULL;
    if (fails()) {
        return OUT_OF_MEMORY;
    }
    for (unsigned index = 0; index < count; index++) {
        *(volatile uint64_t *)(uintptr_t)operations[index * 6 + 1] = operations[index * 6 + 2];
    }
    return SUCCESS;
}

int cuStreamSynchronize(void *stream) {
    wrong += stream == NULL;
    return fails() ? OUT_OF_MEMORY : SUCCESS;
}
