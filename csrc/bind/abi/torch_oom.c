/*
 * torch_oom.c - making a c10::OutOfMemoryError by its exported parts.
 *
 * torch's C ABI throws c10::Error only. c10::OutOfMemoryError is the same object with
 * another virtual table, all of whose symbols are exported: the constructor of its base
 * by libc10, type and table by every library that throws it.
 * tests/csrc/bind/error_guard.cpp throws one and catches it as torch does.
 *
 * Source: Itanium C++ ABI, 2.4 (throwing), 3.1 (std::string by invisible reference).
 */
#include "bind/abi/torch_oom.h"

#include "bind/abi/torch_abi.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROOM = 1024,       /* more than any c10::Error has been (some 200) */
    TO_FUNCTIONS = 16, /* in a virtual table, behind offset and type */
    DESTRUCTOR = 0,    /* the first function of a class with a virtual destructor */
};

typedef struct source_location {
    const char *function, *file;
    uint32_t line;
} source_location;

static struct parts {
    void *(*allocate)(size_t bytes);
    void (*throw)(void *error, void *type, void (*destructor)(void *))
        __attribute__((noreturn));
    void (*init)(void *error, source_location where, at_string *text);
    void *type;
    char *table;
} parts;

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

static bool find_parts(void)
{
    *(void **)&parts.allocate = ptac_torch_symbol("__cxa_allocate_exception");
    *(void **)&parts.throw = ptac_torch_symbol("__cxa_throw");
    *(void **)&parts.init =
        ptac_torch_symbol("_ZN3c105ErrorC1ENS_14SourceLocationE" STRING);
    parts.type = ptac_torch_symbol("_ZTIN3c1016OutOfMemoryErrorE");
    parts.table = ptac_torch_symbol("_ZTVN3c1016OutOfMemoryErrorE");
    return parts.allocate && parts.throw &&parts.init && parts.type && parts.table &&
           T.cxx_new && T.cxx_delete;
}

bool ptac_torch_has_oom(void)
{
    return parts.table || find_parts();
}

void ptac_torch_throw(const char *text)
{
    T.aoti_torch_check(false, "ptac_torch_throw", __FILE__, __LINE__, text);
    abort(); /* the check throws */
}

void ptac_torch_throw_oom(const char *text)
{
    const source_location where = {"ptac_cuda_allocator", __FILE__, __LINE__};
    at_string string = {.length = strlen(text)};
    void **error;

    if (!ptac_torch_has_oom())
        ptac_torch_throw(text);
    string.capacity = string.length;
    string.text = memcpy(T.cxx_new(string.length + 1), text, string.length + 1);
    error = parts.allocate(ROOM);
    parts.init(error, where, &string);
    if (string.text != string.inside)
        T.cxx_delete((void *)(uintptr_t)string.text);
    *error = parts.table + TO_FUNCTIONS;
    parts.throw(error, parts.type, ((void (**)(void *)) * error)[DESTRUCTOR]);
}
