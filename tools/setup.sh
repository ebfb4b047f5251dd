#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# setup.sh demo|test|sweep [--list]
# Makes .venv with mcugen, and sees that compilers and QEMU are there: for the demo what it runs, for the tests all
# that they run, and development tools, for the sweep what the long ones run besides. Packages have the versions of tools/constraints.txt, with which the tests
# passed. Silent and quick when nothing is to be done. As root on Debian it installs
# what is missing; with --list it prints that, a line each, and does nothing.
set -eu
cd "$(dirname "$0")/.."

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

has() { command -v "$1" >/dev/null 2>&1; }

finds() { # whether a compiler finds a file of its library: it prints the bare name if not
    case $("$@" 2>/dev/null) in */*) ;; *) false ;; esac
}

missing_for_demo() {
    has arm-none-eabi-gcc || echo gcc-arm-none-eabi
    finds arm-none-eabi-gcc -print-file-name=libc.a || echo libnewlib-arm-none-eabi
    has qemu-system-arm || echo qemu-system-arm
    has gcc || echo gcc # for QEMU's plugin, from which cycles are estimated
    finds gcc -print-file-name=libc.a || echo libc6-dev
    [ -x .venv/bin/pip ] || "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

missing_for_test() {
    missing_for_demo
    has riscv64-unknown-elf-gcc || echo gcc-riscv64-unknown-elf
    finds riscv64-unknown-elf-gcc -print-file-name=picolibc.specs || echo picolibc-riscv64-unknown-elf
    has qemu-system-riscv32 || echo qemu-system-misc
    has cmake || echo cmake
    has arduino-builder || echo arduino-builder arduino-core-avr
    has avr-gcc || echo gcc-avr
    finds avr-gcc -print-file-name=libc.a || echo avr-libc
    has xtensa-lx106-elf-gcc || echo gcc-xtensa-lx106
    finds xtensa-lx106-elf-gcc -print-file-name=libc.a || echo picolibc-xtensa-lx106-elf
    has powerpc-linux-gnu-gcc || echo gcc-powerpc-linux-gnu
    finds powerpc-linux-gnu-gcc -print-file-name=libc.a || echo libc6-dev-powerpc-cross
    has qemu-ppc || echo qemu-user
    has g++ || echo g++
    has clang || echo clang
    has tcc || echo tcc # which knows C99 and little else, as pcc
    has pcc || echo pcc
    has clang-tidy || echo clang-tidy
    has cppcheck || echo cppcheck # whose add-on knows the rules of MISRA C:2012
    has chromium || echo chromium # in which pages are tested
    has chromedriver || echo chromium-driver
}

missing_for_sweep() {
    missing_for_test
    has clang-22 || echo clang-22 # the newest
    has ld.lld-22 || echo lld-22
    has chibicc || echo chibicc
    has frama-c || echo frama-c-base # which proves bounds of kernels
}

requirements() { cat pyproject.toml tools/constraints.txt; }

missing_python() { # the stamp is a copy: it differs when dependencies may have changed
    for stamp in $stamps; do
        requirements | cmp -s - ".venv/installed-$stamp" && return
    done
    echo "$extras"
}

install_packages() {
    install="apt-get install -y --no-install-recommends $*"
    [ "$(id -u)" = 0 ] && has apt-get || die "programs are missing. On Debian: sudo $install"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    $install -qq
}

purpose=${1:-}
case $purpose in
    demo) extras='.[report,planning]' stamps='demo test' ;;
    test) extras='.[dev]' stamps='test sweep' ;;
    sweep) extras='.[dev]' stamps='test sweep' ;;
    *) die "usage: setup.sh demo|test|sweep [--list]" ;;
esac
find_python
packages=$("missing_for_$purpose" | tr '\n' ' ')
requirement=$(missing_python)
if [ "${2:-}" = --list ]; then
    for package in $packages; do echo "$package"; done
    [ -z "$requirement" ] || echo "pip $requirement"
    exit
fi
# shellcheck disable=SC2086  # one word a package
[ -z "$packages" ] || install_packages $packages

[ -x .venv/bin/pip ] || "$python" -m venv .venv
if [ -n "$requirement" ]; then
    # Bytecode comes with the first import, as most modules are never imported.
    .venv/bin/pip install --quiet --disable-pip-version-check --no-compile -c tools/constraints.txt -e "$requirement"
    # TOSA's reference model needs none of the versions that its package asks for; some would replace ours.
    [ "$purpose" = demo ] ||
        .venv/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps tosa-tools==2026.8.0
    requirements >".venv/installed-$purpose"
fi
