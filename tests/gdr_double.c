// Replaces libgdrapi, only for the tests of host/cuda/gdr.rs. It has the functions of gdrapi.h that ginlab calls, and
// maps nothing: it records the calls, rejects what GDRCopy rejects, and fails where a test requests it.

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct gdr *gdr_t;
typedef struct {
    unsigned long h;
} gdr_mh_t;

static const size_t gpu_page = 65536;
static const unsigned long first_handle = 77;

static char record[512];
static char failing[16];
static int failing_code;

// The only buffer of the only connection.
static int opened;
static unsigned long pinned_address;
static size_t pinned_bytes;
static int mapped;

// Records a call. Returns the error code that a test has requested for it.
static int called(const char *call) {
    size_t length = strlen(record);
    snprintf(record + length, sizeof record - length, "%s%s", length ? " " : "", call);
    return strcmp(call, failing) == 0 ? failing_code : 0;
}

static int known(gdr_t g, gdr_mh_t handle) {
    return opened && g == (gdr_t)&opened && pinned_bytes > 0 && handle.h == first_handle;
}

void double_fail(const char *call, int code) {
    snprintf(failing, sizeof failing, "%s", call);
    failing_code = code;
}

const char *double_record(void) {
    return record;
}

// Called when the owner frees the memory.
void double_free(void) {
    called(pinned_bytes > 0 ? "free-while-pinned" : "free");
}

gdr_t gdr_open(void) {
    if (called("open") != 0) {
        return NULL;
    }
    opened = 1;
    return (gdr_t)&opened;
}

int gdr_close(gdr_t g) {
    int code = called(opened && g == (gdr_t)&opened ? "close" : "close-what-is-not-open");
    opened = 0;
    return code;
}

int gdr_pin_buffer(gdr_t g, unsigned long address, size_t bytes, uint64_t p2p_token, uint32_t va_space, gdr_mh_t *handle) {
    int code = called("pin");
    if (code != 0) {
        return code;
    }
    if (!opened || g != (gdr_t)&opened || pinned_bytes > 0 || address == 0 || address % gpu_page != 0 || bytes == 0 ||
        bytes % gpu_page != 0 || p2p_token != 0 || va_space != 0 || handle == NULL) {
        return EINVAL;
    }
    pinned_address = address;
    pinned_bytes = bytes;
    handle->h = first_handle;
    return 0;
}

// The two release functions release even if they fail, so that a test sees the subsequent calls.
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle) {
    int code = called(!known(g, handle) ? "unpin-what-is-not-pinned" : mapped ? "unpin-while-mapped" : "unpin");
    pinned_bytes = 0;
    return code;
}

int gdr_map(gdr_t g, gdr_mh_t handle, void **address, size_t bytes) {
    int code = called("map");
    if (code != 0) {
        return code;
    }
    if (!known(g, handle) || mapped || address == NULL || bytes != pinned_bytes) {
        return EINVAL;
    }
    mapped = 1;
    *address = (void *)pinned_address;
    return 0;
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *address, size_t bytes) {
    int right = known(g, handle) && mapped && address == (void *)pinned_address && bytes == pinned_bytes;
    int code = called(right ? "unmap" : "unmap-what-is-not-mapped");
    mapped = 0;
    return code;
}

void gdr_runtime_get_version(int *major, int *minor) {
    *major = 2;
    *minor = 99;
}
