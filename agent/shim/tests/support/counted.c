// A program that counts the allocations of the heap in its process, and prints how many each call of CUDA makes in a thousand calls.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
static long count;

void *malloc(size_t bytes) { __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED); return __libc_malloc(bytes); }
void *calloc(size_t number, size_t bytes) { __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED); return __libc_calloc(number, bytes); }
void *realloc(void *at, size_t bytes) { __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED); return __libc_realloc(at, bytes); }
void *memalign(size_t to, size_t bytes) { __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED); return __libc_memalign(to, bytes); }
void *aligned_alloc(size_t to, size_t bytes) { return memalign(to, bytes); }
int posix_memalign(void **at, size_t to, size_t bytes) { return (*at = memalign(to, bytes)) ? 0 : 12; }

static void *cuda;

// the functions have the types of cuda.h
static int call(const char *name, long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k)
{
    int (*function)() = (int (*)())dlsym(cuda, name);
    return function ? function(a, b, c, d, e, f, g, h, i, j, k) : 500;
}
#define CALL1(name, a) call(name, a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
#define CALL2(name, a, b) call(name, a, b, 0, 0, 0, 0, 0, 0, 0, 0, 0)
#define CALL5(name, a, b, c, d, e) call(name, a, b, c, d, e, 0, 0, 0, 0, 0, 0)

static int launch(void) { return call("cuLaunchKernel", 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0); }
static int synchronize(void) { return CALL1("cuStreamSynchronize", 0); }
static int plain(void)
{
    unsigned long long at = 0;
    return CALL2("cuMemAlloc_v2", (long)&at, 1 << 20) | CALL1("cuMemFree_v2", at);
}
static int info(void)
{
    size_t left, total;
    return CALL2("cuMemGetInfo_v2", (long)&left, (long)&total);
}
static int ordered(void)
{
    unsigned long long at = 0;
    return CALL5("cuMemAllocAsync", (long)&at, 1 << 20, 0, 0, 0) | CALL2("cuMemFreeAsync", at, 0);
}
static int virtual(void)
{
    // pinned, no handle types, on device 0
    int properties[32] = {1, 0, 1, 0};
    unsigned long long handle = 0;
    long at = 1l << 46, bytes = 2 << 20;
    return CALL5("cuMemCreate", (long)&handle, bytes, (long)properties, 0, 0) | CALL5("cuMemMap", at, bytes, 0, handle, 0)
        | CALL1("cuMemRelease", handle) | CALL2("cuMemUnmap", at, bytes);
}
static int array(void)
{
    void *made = NULL;
    // width, height, format float, one channel
    size_t descriptor[3] = {256, 256, 0x20 | 1l << 32};
    return CALL2("cuArrayCreate_v2", (long)&made, (long)descriptor) | CALL1("cuArrayDestroy", (long)made);
}
static int own(void)
{
    void *volatile at = malloc(1);
    free(at);
    return 0;
}

static const struct { const char *name; int (*once)(void); } CALLS[] = {
    {"own", own}, {"launch", launch}, {"synchronize", synchronize}, {"plain", plain}, {"info", info},
    {"virtual", virtual}, {"array", array}, {"ordered", ordered}, {"info-with-pools", info},
};

int main(void)
{
    // the output has no buffer of the heap
    setvbuf(stdout, NULL, _IONBF, 0);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || CALL1("cuInit", 0)) return 1;
    for (size_t at = 0; at < sizeof CALLS / sizeof *CALLS; at++) {
        long first = count;
        int failed = CALLS[at].once();
        long then = count;
        for (int more = 0; more < 1000; more++) failed |= CALLS[at].once();
        printf("%s first=%ld then=%ld failed=%d\n", CALLS[at].name, then - first, count - then, failed);
    }
    return 0;
}
