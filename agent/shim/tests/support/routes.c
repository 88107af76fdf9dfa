// How programs find functions of CUDA. With STUB it is a library to link with, as the driver's development package has one; with WRAPPER a library that
// is loaded before, and stands in front of a function.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define FUNCTION "cuMemAlloc_v2"
typedef int alloc(unsigned long long *pointer, size_t bytes);

#if defined(STUB)
int cuInit(unsigned flags) { return flags ? 1 : 999; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { return context && !flags && !device ? 999 : 1; }
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) { return pointer && bytes ? 999 : 1; }
#elif defined(WRAPPER)
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
    alloc *next = (alloc *)dlsym(RTLD_NEXT, FUNCTION);
    return next ? 1000 + next(pointer, bytes) : -1;
}
#else
int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
alloc cuMemAlloc_v2;

// the file of a function, and the code of an allocation of 2 GiB
static void show(const char *route, void *function)
{
    Dl_info found;
    unsigned long long pointer = 0;
    if (!function || !dladdr(function, &found) || !found.dli_sname) {
        printf("%s none\n", route);
        return;
    }
    printf("%s %s %s %d\n", route, found.dli_fname, found.dli_sname, ((alloc *)function)(&pointer, 2ul << 30));
}

int main(void)
{
    void *context = NULL;
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
        return 1;
    void *handle = dlopen("libcuda.so.1", RTLD_NOW), *loaded = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    show("linked", (void *)cuMemAlloc_v2);
    show("default", dlsym(RTLD_DEFAULT, FUNCTION));
    show("next", dlsym(RTLD_NEXT, FUNCTION));
    show("handle", dlsym(handle, FUNCTION));
    show("loaded", dlsym(loaded, FUNCTION));
    show("version-default", dlvsym(RTLD_DEFAULT, FUNCTION, "GLIBC_2.2.5"));
    show("version-next", dlvsym(RTLD_NEXT, FUNCTION, "libcuda.so.1"));
    show("version-handle", dlvsym(handle, FUNCTION, "GLIBC_2.2.5"));
    return 0;
}
#endif
