/*
 * torch_abi.c - finding libtorch's functions in the running process.
 *
 * RTLD_NOLOAD: whatever torch the program imported is the one; nothing is loaded here.
 */
#include "bind/abi/torch_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum {
    N_LIBRARIES = 6,
    C10 = 2, /* its place among them */
    PATH_BYTES = 4096,
};

ptac_torch_symbols T;

static void *libraries[N_LIBRARIES];

static const char *open_libraries(const char *directory)
{
    static const char *const names[N_LIBRARIES] = {
        "libtorch_cpu.so", "libtorch_python.so", "libc10.so",
        "libtorch.so",     "libstdc++.so.6",     "libtorch_cuda.so"};
    char path[PATH_BYTES];

    for (int i = 0; i < N_LIBRARIES; i++) {
        libraries[i] = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
        if (!libraries[i] && snprintf(path, sizeof path, "%s/%s", directory, names[i]) <
                                 (int)sizeof path)
            libraries[i] = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    }
    return libraries[0] ? NULL : "libtorch_cpu.so is not loaded";
}

static bool is_hidden(const char *hidden, const char *name)
{
    const size_t length = strlen(name);

    for (const char *at = hidden; at && *at; at += strcspn(at, ",")) {
        at += *at == ',';
        if (strcspn(at, ",") == length && strncmp(at, name, length) == 0)
            return true;
    }
    return false;
}

static void *resolve(const char *name, const char *symbol, const char *hidden)
{
    if (is_hidden(hidden, name))
        return NULL;
    for (int i = 0; i < N_LIBRARIES; i++) {
        void *found = libraries[i] ? dlsym(libraries[i], symbol) : NULL;

        if (found)
            return found;
    }
    return NULL;
}

const char *ptac_torch_load(const char *directory, const char *hidden)
{
    const char *missing = open_libraries(directory);

    if (missing)
        return missing;
#define M(type, name, symbol, parameters)                                              \
    *(void **)&T.name = resolve(#name, symbol, hidden);
#define F(type, name, parameters) M(type, name, #name, parameters)
    PTAC_TORCH_ALL(F, M)
#undef F
#define F(type, name, parameters)                                                      \
    if (!T.name && !missing)                                                           \
        missing = #name;
    PTAC_TORCH_REQUIRED(F)
#undef F
#undef M
    return missing;
}

void *ptac_torch_c10(void)
{
    return libraries[C10];
}

void *ptac_torch_symbol(const char *symbol)
{
    return resolve(symbol, symbol, NULL);
}
