/*
 * oom_guard.cpp - an out-of-memory error made in C is caught as torch catches its own.
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
