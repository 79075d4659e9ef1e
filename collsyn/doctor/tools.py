"""Checks of what collsyn is built on: Python packages, solvers, compilers, MPI."""

import re

from collsyn.doctor.finding import Finding, NotMade
from collsyn.doctor.system import System
from collsyn.runtime.mpirun import version_kind

_PROBE_LIMIT_S = 60.0
# A second, unless the machine is very busy.
_COMPILE_LIMIT_S = 120.0
_COMMAND_LIMIT_S = 20.0
_LAST_WORDS = 200
_IS_RANK = "this process was started by an MPI launcher itself"
# Packages that exclude each other: all of them bring the module `cupy`.
CUPY_DISTRIBUTIONS = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")
_OPTIONAL = ("mpi4py", "mpich", *CUPY_DISTRIBUTIONS, "torch", "matplotlib", "nvidia-ml-py", "nccl4py")
# What a tree that is not installed needs, which has no metadata to say so.
_REQUIRED = ("click", "highspy", "networkx", "numba", "numpy", "pulp", "pyyaml", "rich", "scipy")


def check_packages(system: System) -> Finding:
    """Python packages that collsyn needs, with their versions, and those it can use."""
    requirements = [text for text in system.requirements() if "extra ==" not in text] or list(_REQUIRED)
    found, lacking = {}, []
    for text in requirements:
        name, least = _requirement(text)
        version = system.version(name)
        found[name] = version
        if version is None:
            lacking.append(f"{name} is missing")
        elif _numbers(version) < _numbers(least):
            lacking.append(f"{name} is {version}, not {least} or newer")
    optional = {name: version for name in _OPTIONAL if (version := system.version(name)) is not None}
    facts = {"required": found, "optional": optional}
    if lacking:
        wanted = " ".join(f"'{_pip_words(text)}'" for text in requirements if _is_lacking(text, lacking))
        return Finding("problem", "; ".join(lacking), f"pip install {wanted}", facts)
    several = [name for name in CUPY_DISTRIBUTIONS if name in optional]
    if len(several) > 1:
        remedy = f"pip uninstall {' '.join(several)}, then install the one for the driver"
        return Finding("warning", f"{' and '.join(several)} are both installed, one spoils the other", remedy, facts)
    extras = ", ".join(f"{name} {version}" for name, version in optional.items()) or "none"
    return Finding("ok", f"all {len(found)} that are required; optional: {extras}", facts=facts)


def check_solvers(system: System) -> Finding:
    """HiGHS, which synthesis needs, and PuLP, each on a small integer program."""
    facts = {}
    troubles = {}
    for name in ("highs", "pulp"):
        answer = system.probe("solvers", name, limit_s=_PROBE_LIMIT_S)
        if answer.facts is None:
            troubles[name] = answer.trouble
        elif not answer.facts["right"]:
            troubles[name] = "solves 3x + 2y wrongly"
        else:
            facts[name] = answer.facts["version"]
    if "highs" in troubles:
        detail = f"HiGHS {troubles['highs']}"
        return Finding("problem", detail, "pip install --force-reinstall highspy", facts)
    if "pulp" in troubles:
        remedy = "pip install --force-reinstall pulp"
        return Finding("warning", f"HiGHS {facts['highs']}; PuLP {troubles['pulp']}", remedy, facts)
    return Finding("ok", f"HiGHS {facts['highs']}, PuLP {facts['pulp']}, both solve", facts=facts)


def check_compiler(system: System) -> Finding:
    """The C compiler, by compiling and loading the executor that ranks run."""
    if system.variable("COLLSYN_NATIVE") == "0":
        return Finding("warning", "COLLSYN_NATIVE=0: ranks run the slower NumPy executor", "unset COLLSYN_NATIVE")
    given = system.variable("CC")
    path = system.command(given.split()[0]) if given and given.split() else system.command("cc", "gcc", "clang")
    facts: dict[str, object] = {"compiler": path}
    if path is None:
        what = f"CC names {given}, which is not there" if given else "no cc, gcc or clang"
        remedy = "install one (apt install gcc, dnf install gcc, conda install gcc) or name it in CC"
        return Finding("warning", f"{what}: ranks run the slower NumPy executor", remedy, facts)
    ran = system.run([path, "--version"], _COMMAND_LIMIT_S)
    if ran is not None and ran.code is None:
        detail = f"{path} --version {ran.trouble(_COMMAND_LIMIT_S)}: ranks run the slower NumPy executor"
        return Finding("warning", detail, "repair it, or name another compiler in CC", facts)
    version = ran.out.splitlines()[0] if ran and ran.code == 0 and ran.out else "of unknown version"
    answer = system.probe("native", limit_s=_COMPILE_LIMIT_S)
    facts |= {"version": version, **(answer.facts or {})}
    if answer.facts is None or not answer.facts["works"]:
        said = answer.trouble if answer.facts is None else answer.facts["said"]
        why = f"does not make the executor that ranks run ({_shortened(said)}): they run the slower NumPy one"
        remedy = "repair it (its C library's headers too: apt install gcc libc6-dev), or name another compiler in CC"
        return Finding("warning", f"{path} ({version}) {why}", remedy, facts)
    if not answer.facts["is_kept"]:
        detail = f"{path} ({version}) works, but nothing that it compiles is kept: each start compiles anew"
        return Finding("warning", detail, "make ~/.cache writable, or set COLLSYN_CACHE to a folder of yours", facts)
    return Finding("ok", f"{path} ({version}) compiled the executor that ranks run", facts=facts)


def check_mpi(system: System) -> Finding | NotMade:
    """The MPI launcher, the library that mpi4py loads, its thread level, and whether it takes device pointers."""
    if system.is_rank():
        return NotMade(_IS_RANK)
    install = "pip install 'collsyn[mpi]', or the system's MPI and pip install mpi4py"
    mpirun = system.mpirun()
    facts: dict[str, object] = {"mpirun": mpirun}
    kind = "none"
    if mpirun is not None:
        ran = system.run([mpirun, "--version"], _COMMAND_LIMIT_S)
        if ran is None or ran.code != 0:
            why = "cannot be started" if ran is None else f"--version {ran.trouble(_COMMAND_LIMIT_S)}"
            return Finding("problem", f"{mpirun} {why}", install, facts)
        kind = version_kind(ran.out + ran.err)
    facts["mpirun_kind"] = kind
    if system.version("mpi4py") is None:
        what = "no MPI" if mpirun is None else f"{mpirun} ({kind}), but no mpi4py"
        return Finding(
            "warning", f"{what}: ranks are forked, on this machine alone, without bench --against mpi", install, facts
        )
    answer = system.probe("mpi", limit_s=_PROBE_LIMIT_S)
    if answer.facts is None:
        remedy = _mpi_remedy(answer.trouble, install)
        return Finding("problem", f"mpi4py cannot be loaded: {answer.trouble}", remedy, facts)
    facts |= answer.facts
    aware = {True: "CUDA-aware", False: "not CUDA-aware", None: "does not say whether it is CUDA-aware"}
    detail = f"{answer.facts['library']} by mpi4py {answer.facts['mpi4py']}, threads {answer.facts['thread_level']}, "
    detail += aware[answer.facts["cuda_aware"]]
    if mpirun is None:
        return Finding("warning", f"{detail}; no mpirun or mpiexec", install, facts)
    return Finding("ok", f"{detail}; mpirun of {kind if kind != 'other' else 'another kind'}", facts=facts)


def check_mpi_launch(system: System) -> Finding | NotMade:
    """Two ranks under mpirun that write into each other's memory and verify the bytes."""
    if system.is_rank():
        return NotMade(_IS_RANK)
    mpirun = system.mpirun()
    if mpirun is None or system.version("mpi4py") is None:
        return NotMade("no mpirun" if mpirun is None else "no mpi4py")
    answer = system.probe("launch", "mpirun", limit_s=_PROBE_LIMIT_S)
    error = answer.trouble if answer.facts is None else answer.facts.get("error")
    if error:
        remedy = (
            "take the mpirun of the MPI that mpi4py loads (--mpirun, PATH), or pip install --force-reinstall "
            "--no-binary mpi4py mpi4py; meanwhile --launcher fork works without MPI"
        )
        return Finding("problem", f"two ranks under {mpirun}: {error}", _mpi_remedy(error, remedy))
    assert answer.facts is not None
    if not answer.facts["verified"]:
        remedy = "run all ranks in one container on this machine; --launcher fork works without MPI"
        return Finding("problem", "two ranks under mpirun map memory of each other in which bytes are wrong", remedy)
    return Finding(
        "ok", f"two ranks under {mpirun} wrote into each other's memory, all bytes verified", facts=answer.facts
    )


def check_cuda_compilers(system: System, has_gpu: bool) -> Finding:
    """NVRTC, which compiles kernels at run time, and nvcc."""
    nvcc = system.command("nvcc")
    release = None
    if nvcc is not None:
        ran = system.run([nvcc, "--version"], _COMMAND_LIMIT_S)
        match = re.search(r"release (\d+\.\d+)", ran.out) if ran and ran.code == 0 else None
        release = match[1] if match else None
    answer = system.probe("nvrtc", limit_s=_PROBE_LIMIT_S)
    facts = {
        "nvcc": nvcc,
        "nvcc_release": release,
        **{f"nvrtc_{key}": value for key, value in (answer.facts or {}).items()},
    }
    shown = "no nvcc" if nvcc is None else f"nvcc {release or 'that does not say its release'}"
    remedy = "pip install nvidia-cuda-nvrtc-cu12 (or nvidia-cuda-nvrtc for CUDA 13), or the CUDA toolkit"
    broken = answer.trouble
    if answer.facts is not None and answer.facts["found"] and not answer.facts["compiles"]:
        broken = f"at {answer.facts['path']} compiles nothing: {answer.facts['reason']}"
    if answer.facts is None or broken:
        return Finding("problem" if has_gpu else "warning", f"NVRTC {broken}; {shown}", remedy, facts)
    if not answer.facts["found"]:
        if has_gpu:
            return Finding("problem", f"no NVRTC, which compiles kernels for the GPUs here; {shown}", remedy, facts)
        return Finding("ok", f"no NVRTC, {shown}; only GPUs need them", facts=facts)
    known = answer.facts["architectures"]
    spread = f"sm_{known[0]} to sm_{known[-1]}" if known else "no architecture"
    return Finding("ok", f"NVRTC {answer.facts['version']} compiles, for {spread}; {shown}", facts=facts)


def _mpi_remedy(error: str, general: str) -> str:
    """What to do about a failure of MPI; a bus error is memory that the kernel promised and does not have."""
    if "SIGBUS" in error or "bus error" in error.lower():
        return "enlarge /dev/shm or free it (see shm); meanwhile --launcher fork works without MPI and without it"
    return general


def _shortened(said: str) -> str:
    """The line of what a compiler said that names the error, else the first one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or ["it says nothing"])[0][-_LAST_WORDS:]


def _requirement(text: str) -> tuple[str, str]:
    """Name and least version of a requirement such as `numpy>=1.26`; the version is empty where none is named."""
    match = re.match(r"([\w.-]+)", text.strip())
    least = re.search(r">=\s*([\w.]+)", text)
    return (match[1] if match else text, least[1] if least else "")


def _pip_words(text: str) -> str:
    return text.partition(";")[0].replace(" ", "")


def _is_lacking(text: str, lacking: list[str]) -> bool:
    return any(line.split()[0] == _requirement(text)[0] for line in lacking)


def _numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version, for comparing: 1.26.4rc1 is (1, 26, 4)."""
    return tuple(int(part[0]) for part in map(re.compile(r"\d+").match, version.split(".")) if part)
