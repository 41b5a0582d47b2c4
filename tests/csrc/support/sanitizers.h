/*
 * sanitizers.h - which sanitizer this build has, in gcc's words and in clang's.
 */
#ifndef PTAC_TESTS_SANITIZERS_H
#define PTAC_TESTS_SANITIZERS_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ADDRESS_SANITIZER 1
#endif
#if __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__) && !defined(UNDER_ADDRESS_SANITIZER)
#define UNDER_ADDRESS_SANITIZER 1
#endif
#if defined(__SANITIZE_THREAD__) && !defined(UNDER_THREAD_SANITIZER)
#define UNDER_THREAD_SANITIZER 1
#endif

#endif
