// Functions of the driver that return at once and allocate nothing, in front of the simulated driver, which has the others.
#include <stddef.h>

typedef unsigned long long pointer;

static pointer address = 0x7f0000000000ull;

int cuCtxGetCurrent(void **context) { *context = (void *)0x1000; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuMemAlloc_v2(pointer *to, size_t bytes) { *to = address += bytes; return 0; }
int cuMemFree_v2(pointer at) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = 1ull << 36; return 0; }
int cuPointerGetAttribute(void *to, int attribute, pointer at) { return 0; }

int cuDeviceGetMemPool(void **pool, int device) { *pool = (void *)0x2000; return 0; }
int cuMemPoolGetAttribute(void *pool, int attribute, void *to) { *(pointer *)to = 1 << 25; return 0; }
int cuMemAllocAsync(pointer *to, size_t bytes, void *stream) { *to = address += bytes; return 0; }
int cuMemFreeAsync(pointer at, void *stream) { return 0; }

int cuMemCreate(pointer *handle, size_t bytes, const void *properties, pointer flags) { *handle = ++address; return 0; }
int cuMemMap(pointer at, size_t bytes, size_t offset, pointer handle, pointer flags) { return 0; }
int cuMemUnmap(pointer at, size_t bytes) { return 0; }
int cuMemRelease(pointer handle) { return 0; }

int cuArrayCreate_v2(void **array, const void *descriptor) { *array = (void *)(address += 64); return 0; }
int cuArrayDestroy(void *array) { return 0; }

int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **p, void **x)
{ return 0; }
int cuStreamSynchronize(void *stream) { return 0; }
int cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = (void *)(address += 64); return 0; }
int cuEventRecord(void *event, void *stream) { return 0; }
int cuEventQuery(void *event) { return 0; }
int cuEventElapsedTime(float *milliseconds, void *start, void *end) { *milliseconds = 0.001f; return 0; }
int cuEventElapsedTime_v2(float *milliseconds, void *start, void *end) { *milliseconds = 0.001f; return 0; }
int cuEventDestroy_v2(void *event) { return 0; }
