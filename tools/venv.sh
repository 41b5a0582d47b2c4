#!/bin/sh
# venv.sh DIR - make a virtual environment with pip, or say what is missing here.
#
# Python is $PYTHON where that is set, else the first of the usual names that is new
# enough. Also looks for what the build needs: a C compiler and Python's headers.
set -eu

dir=$1

fail() {
    printf 'make: %s\n' "$@" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if command -v "$python" >/dev/null && is_new_enough "$python"; then
            command -v "$python"
            return
        fi
    done
}

python=$(find_python)
[ -n "$python" ] ||
    fail "Python 3.11 or newer is needed; ${PYTHON:-python3} is $(
        ${PYTHON:-python3} --version 2>/dev/null || echo not there)." \
        "Name another one: make PYTHON=/path/to/python3.11 ..."
command -v "${CC:-cc}" >/dev/null ||
    fail "a C compiler is needed: ${CC:-cc} is not there (Debian: apt install gcc)."
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -f "$headers/Python.h" ] ||
    fail "Python's headers are needed: there is no $headers/Python.h" \
        "(Debian: apt install python3-dev)."

echo "$python -m venv $dir"
if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    "$python" -m venv "$dir"
elif "$python" -m pip --version >/dev/null 2>&1; then
    # Debian keeps ensurepip in a package of its own; a pip that is there can do its work.
    "$python" -m venv --without-pip "$dir"
    "$python" -m pip --python "$dir/bin/python" install pip
else
    fail "$python can make no virtual environment: it has neither ensurepip nor pip" \
        "(Debian: apt install python3-venv)."
fi
