#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes .venv with mcugen and its development tools, and sees that compilers and QEMU are there.
# Silent and quick when nothing is to be done. As root on Debian it installs what is missing.
set -eu
cd "$(dirname "$0")/.."

STAMP=.venv/installed-pyproject.toml # a copy: differs when dependencies may have changed

die() {
    echo "setup: $*" >&2
    exit 1
}

find_python() {
    for python in python3.11 python3; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    done
    die "Python 3.11 or newer is needed; found neither python3.11 nor a python3 of that age"
}

missing_packages() {
    has() { command -v "$1" >/dev/null 2>&1; }
    finds() { # whether a compiler finds a file of its library: it prints the bare name if not
        case $("$@" 2>/dev/null) in */*) ;; *) false ;; esac
    }
    has arm-none-eabi-gcc || echo gcc-arm-none-eabi
    finds arm-none-eabi-gcc -print-file-name=libc.a || echo libnewlib-arm-none-eabi
    has qemu-system-arm || echo qemu-system-arm
    has riscv64-unknown-elf-gcc || echo gcc-riscv64-unknown-elf
    finds riscv64-unknown-elf-gcc -print-file-name=picolibc.specs || echo picolibc-riscv64-unknown-elf
    has qemu-system-riscv32 || echo qemu-system-misc
    has avr-gcc || echo gcc-avr
    finds avr-gcc -print-file-name=libc.a || echo avr-libc
    has powerpc-linux-gnu-gcc || echo gcc-powerpc-linux-gnu
    finds powerpc-linux-gnu-gcc -print-file-name=libc.a || echo libc6-dev-powerpc-cross
    has qemu-ppc || echo qemu-user
    has gcc || echo gcc
    has g++ || echo g++
    has clang || echo clang
    [ -x .venv/bin/pip ] || "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

install_packages() {
    install="apt-get install -y --no-install-recommends $*"
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || die "programs are missing. On Debian: sudo $install"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    $install -qq
}

find_python
missing=$(missing_packages | tr '\n' ' ')
# shellcheck disable=SC2086  # one word a package
[ -z "$missing" ] || install_packages $missing

[ -x .venv/bin/pip ] || "$python" -m venv .venv
if ! cmp -s pyproject.toml "$STAMP"; then
    .venv/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
    cp pyproject.toml "$STAMP"
fi
