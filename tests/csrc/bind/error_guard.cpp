/*
 * error_guard.cpp - errors made in C are caught as torch catches its own.
 */
#include <c10/util/Exception.h>

#include <cstring>
#include <string>

extern "C" {
const char *ptac_torch_load(const char *directory, const char *hidden);
void ptac_torch_throw_oom(const char *text);
bool ptac_torch_has_oom(void);
}

/* Fails to build where an error has outgrown what torch_oom.c allocates. */
static_assert(sizeof(c10::OutOfMemoryError) <= 1024, "torch_oom.c: ROOM");
static_assert(sizeof(c10::OutOfMemoryError) == sizeof(c10::Error), "has members");

static bool is_caught(const std::string &text)
{
    try {
        ptac_torch_throw_oom(text.c_str());
    } catch (const c10::OutOfMemoryError &error) {
        return error.what_without_backtrace() == text && error.msg() == text &&
               std::strstr(error.what(), text.c_str()) != nullptr;
    } catch (...) {
    }
    return false;
}

/* What torch calls before it hands CUDA memory to another process; 0 when refused. */
extern "C" int sharing_guard(void *(*base_of)(void *, size_t *))
{
    size_t bytes = 0;

    try {
        base_of(&bytes, &bytes);
    } catch (const c10::Error &error) {
        return std::strstr(error.what(), "cannot be shared with other") == nullptr;
    }
    return 1;
}

/* Loaded into a Python that has imported this torch; 0 when all holds. */
extern "C" int oom_guard(const char *directory)
{
    if (ptac_torch_load(directory, nullptr) != nullptr)
        return 2;
    if (!ptac_torch_has_oom())
        return 3;
    for (int i = 0; i < 100; i++)
        if (!is_caught("short") || !is_caught(std::string(300, 'x')))
            return 1;
    return 0;
}
