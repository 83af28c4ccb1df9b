#!/bin/sh
# Set the project up on first use, then run one of its commands.
# Needs only Python 3.11 or later. Everything it makes is in .venv and .cache.
set -eu

unset CDPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"

here=$PWD
cd -- "$(dirname -- "$0")"
root=$(pwd -P)

# The tests start hundreds of Python processes: without a cache each of them compiles every module that it imports.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$root/.cache/pycache"

stamp=.venv/onetray-stamp

help() {
    cat <<'END'
./go demo              see onetray work
./go test [ARGS]       run the tests (ARGS go to pytest; -n0 runs them in one process)
./go check [ARGS]      everything CI runs: format, lint, types, imports, docs, tests
./go docs              rewrite the generated blocks in README.md and docs/
./go bench [ARGS]      run the benchmarks
./go soak [ARGS]       run the soak test
./go screenshots       take the pictures of the dashboard in docs/images
./go python [ARGS]     the project's Python
./go lock [ARGS]       compile requirements/*.in again (ARGS go to uv, e.g. --upgrade)
./go COMMAND [ARGS]    any other word is a command of onetray, e.g. ./go --help
END
}

fail() {
    echo "go: $*" >&2
    exit 1
}

find_python() {
    for python in python3 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            return
        fi
    done
    fail "no Python 3.11 or later on PATH. Install one (e.g. 'apt install python3 python3-venv'" \
        "or 'brew install python'), then run this again."
}

# The kernel drops the lock when this process ends, however it ends, so it can never be stale.
lock_setup() {
    mkdir -p .cache
    exec 9>.cache/setup.lock
    "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' 9>&9
}

unlock_setup() {
    exec 9>&-
}

make_venv() {
    "$python" -m venv --without-pip --clear .venv ||
        fail "'$python -m venv' failed. On Debian or Ubuntu: apt install python3-venv."
}

# pip takes seconds to put into .venv, so only when nothing else will do.
venv_pip() {
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null || return
    .venv/bin/python -m pip "$@"
}

find_uv() {
    if command -v uv >/dev/null; then
        uv=uv
        return
    fi
    uv=.venv/bin/uv
    set -- install --quiet --require-hashes -r requirements/uv.txt
    "$uv" --version >/dev/null 2>&1 ||
        "$python" -m pip --python .venv/bin/python "$@" 2>/dev/null ||
        venv_pip "$@" 2>/dev/null
}

install_packages() {
    if find_uv && install_with "$uv" pip install --quiet --python .venv/bin/python; then
        return
    fi
    echo "go: uv is not to be had; installing with pip, which takes a little longer" >&2
    install_with venv_pip install --quiet ||
        fail "could not install the packages. Check that pip can reach a package index, then run this again."
}

install_with() {
    "$@" --require-hashes -r requirements/dev.txt && "$@" --no-deps --no-build-isolation -e .
}

inputs() {
    printf '%s %s\n' "$root" "$(cat requirements/uv.txt requirements/dev.txt pyproject.toml | cksum)"
}

is_ready() {
    [ -x .venv/bin/python ] && [ -r "$stamp" ] && [ "$(cat "$stamp")" = "$(inputs)" ]
}

set_up() {
    find_python
    lock_setup
    if is_ready; then # Another ./go did it while this one waited.
        unlock_setup
        return
    fi
    echo "go: setting up .venv" >&2
    # A stamp from this place means a whole .venv: bring it up to date. Otherwise start afresh.
    made_for=$(cat "$stamp" 2>/dev/null) || true
    rm -f "$stamp"
    case $made_for in
        "$root "*) .venv/bin/python -c '' 2>/dev/null || make_venv ;;
        *) make_venv ;;
    esac
    install_packages
    inputs >"$stamp"
    unlock_setup
}

step() {
    echo "== $*" >&2
    "$@"
}

# Five for two cores: many tests wait for a process, a lease or a disk.
processes() {
    cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null) || cores=2
    echo $((5 * cores / 2))
}

look_over() {
    step mypy && step lint-imports && step python tools/house.py && step python tools/gendocs.py --check
}

# What takes a second comes first. The rest runs beside the tests, which leave a core idle now and then.
check() {
    step ruff format --check .
    step ruff check .
    mkdir -p .cache
    look_over >.cache/check.log 2>&1 &
    looking=$!
    trap 'kill "$looking" 2>/dev/null || :' EXIT
    tested=0
    step python -m pytest -n "$(processes)" "$@" || tested=$?
    if ! wait "$looking"; then
        cat .cache/check.log >&2
        fail "mypy, lint-imports, tools/house.py or tools/gendocs.py has found something: see above"
    fi
    echo "== mypy, lint-imports, tools/house.py and tools/gendocs.py have found nothing" >&2
    return "$tested"
}

lock() {
    find_python
    find_uv || fail "uv is needed to compile the requirements"
    for name in uv dev bench node; do
        "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
            --custom-compile-command './go lock' "$@" "requirements/$name.in" -o "requirements/$name.txt"
    done
    if command -v npm >/dev/null; then
        # Without the addresses: they are those of the registry that this machine uses.
        for folder in npm browser; do
            (cd "requirements/$folder" && npm install --package-lock-only --omit-lockfile-registry-resolved \
                --ignore-scripts --silent --no-audit --no-fund)
        done
    else
        echo "go: npm is not to be had; requirements/npm and requirements/browser stay as they are" >&2
    fi
}

if [ $# -eq 0 ]; then
    help
    exit
fi

is_ready || set_up
PATH=$root/.venv/bin:$PATH
export PATH

command=$1
case $command in
    test) shift && exec python -m pytest -n "$(processes)" "$@" ;;
    check) shift && check "$@" ;;
    docs) shift && exec python tools/gendocs.py "$@" ;;
    bench) shift && exec python -m benchmarks "$@" ;;
    soak) shift && exec python -m tests.soak "$@" ;;
    screenshots) shift && exec python tools/screenshots.py "$@" ;;
    lock) shift && lock "$@" ;;
    python) shift && cd -- "$here" && exec python "$@" ;;
    *) cd -- "$here" && exec onetray "$@" ;;
esac
