"""How shells, job systems, parents and notebooks report that a process has died."""

from __future__ import annotations

from legroom.messages.patterns.pattern import wordings
from legroom.messages.reading.sizes import SIZE

__all__ = ["PATTERNS"]

# "exit code 137", "exitcode: -9", "exited with code 139", "non-zero exit status 134"
_CODE = r"xit(?:ed)?[ _-]?(?:with )?(?:[Cc]ode|[Ss]tatus)[\"'\s:=]{0,6}"
# An access violation, a stack that is full, an abort: what Windows calls them.
_WINDOWS = "3221225477|-1073741819|3221225725|-1073741571|3221226505|-1073740791"

_killed = wordings("killed", fallback="system", kind="death", where="host")
_segmentation_fault_or_abort = wordings(
    "segmentation-fault-or-abort", fallback="system", kind="death"
)
_notebook_crashed = wordings("notebook-crashed", fallback="system", kind="death")
_notebook_crashed_host = wordings("notebook-crashed", fallback="system", kind="death", where="host")

PATTERNS = (
    # "line 3: 12345 Killed     python train.py", "[1]+  Killed", "zsh: killed  python train.py"
    _killed(
        "shell-killed",
        "illed",
        (
            r"(?:\S{1,120}: line [0-9]{1,9}: {1,4})?(?:\[[0-9]{1,4}\][+ -]{0,6})?"
            r"(?:(?:bash|zsh|sh|fish|ksh): {0,3})?(?:[0-9]{1,9}[ \t]{1,4})?"
            r"[Kk]illed(?:: 9)?(?:[ \t]{2,40}\S[^\n]{0,200}|[ \t]{0,40})(?=\n|$)"
        ),
        from_line=True,
    ),
    # A progress bar ends without a newline: "- ETA: 1:23Killed".
    _killed(
        "shell-killed-after-progress",
        "Killed",
        r"Killed[ \t]{0,40}(?=\n|$)",
        only_after=r"[a-z0-9\])%.] ?$",
    ),
    _killed("container-oom-killed", "OOMKilled", r"OOMKilled(?![\"']?\s?[:=]\s?[Ff]alse)"),
    _killed("systemd-oom-killer", "killed by the OOM killer"),
    _killed("slurm-out-of-memory-handler", "out-of-memory handler"),
    _killed("slurm-oom-kill-event", "kill event", only_after=r"oom[-_]$"),
    _killed(
        "slurm-task-out-of-memory",
        ": Out Of Memory",
        r": Out Of Memory(?=\s|$)",
        only_after=r"tasks? [0-9,\[\]-]{1,40}$",
    ),
    _killed("slurm-memory-limit", " memory limit", only_after=r"xceeded (?:job|step|process)$"),
    _killed(
        "ray-low-on-memory",
        "running low on memory",
        after=[rf"was (?P<in_use>{SIZE}) ?/ ?(?P<limit>{SIZE})"],
        binary=True,
    ),
    _killed("ray-memory-pressure", "killed due to memory pressure"),
    _killed("ray-memory-monitor", "RayOutOfMemoryError"),
    _killed("dask-memory-budget", " memory budget", only_after=r"xceeded [0-9]{1,3}%$"),
    _segmentation_fault_or_abort("dask-killed-worker", "KilledWorker: ", is_oom=None),
    _killed("kubernetes-evicted", "low on resource: memory"),
    _killed("batch-container-killed", "Container killed due to memory"),
    _killed(
        "yarn-memory-limits",
        "memory limits",
        only_after=r"(?:for exceeding|running beyond physical|running beyond virtual) $",
    ),
    _killed("lsf-memory-limit", "TERM_MEMLIMIT"),
    _killed("pbs-memory-limit", "PBS: job killed: ", r"PBS: job killed: [pv]?mem "),
    _killed("slurm-state", "OUT_OF_MEMORY", r"OUT_OF_MEMORY(?=[ \t]|\n|$)", only_after=r"State: $"),
    _killed("systemd-oomd", "due to memory pressure for", only_after=r"illed \S{1,300} $"),
    _killed(
        "make-killed",
        "] Error 137",
        r"\] Error 137(?![0-9])",
        only_after=r"make[^\n]{0,40}\*\*\*[^\n]{0,200}$",
    ),
    _segmentation_fault_or_abort(
        "make-crashed",
        "] Error 13",
        r"\] Error 13[49](?![0-9])",
        only_after=r"make[^\n]{0,40}\*\*\*[^\n]{0,200}$",
        is_oom=None,
    ),
    _killed("windows-no-memory", "xit", rf"{_CODE}(?:-1073741801|3221225495)(?![0-9])"),
    _segmentation_fault_or_abort("ray-worker-crashed", "orker died unexpectedly", is_oom=None),
    _notebook_crashed("jupyter-restarter", "ernelRestarter: restarting kernel", is_oom=None),
    # Docker tells by itself when it was not memory.
    _killed(
        "exit-code-killed",
        "xit",
        rf"(?:{_CODE}(?:137|-9)|xited \(137\))(?![0-9])",
        only_after=r"^(?![^\n]{0,400}OOMKilled[\"']{0,1}\s{0,1}[:=]\s{0,1}[Ff]alse)",
    ),
    _killed(
        "signal-killed",
        "ignal",
        r"ignals?[\s:.=(]{0,4}(?:9(?![0-9])|SIGKILL|[Kk]illed(?![0-9a-z]))",
    ),
    # Python's subprocess and multiprocessing count signals as negative codes.
    _killed("return-code-killed", "eturn", r"eturn(?:ed|[ _]?code|ed code)[\s:=]{0,4}-9(?![0-9])"),
    # joblib's "{SIGKILL(-9)}", gunicorn's "was sent SIGKILL!", systemd's "status=9/KILL"
    _killed(
        "sigkill",
        "KILL",
        r"KILL(?:\(-?9\)|! Perhaps out of memory|(?=\s|$))",
        only_after=r"(?:SIG|status=9/)$",
    ),
    _segmentation_fault_or_abort(
        "exit-code-crashed",
        "xit",
        rf"{_CODE}(?:139|-11|134|-6|135|-7|{_WINDOWS})(?![0-9])",
        is_oom=None,
    ),
    _segmentation_fault_or_abort("segmentation-fault", "egmentation fault", is_oom=None),
    _segmentation_fault_or_abort("process-pool-broken", "terminated abruptly", is_oom=None),
    _segmentation_fault_or_abort("core-dumped", "(core dumped)", r"\(core dumped\)", is_oom=None),
    _segmentation_fault_or_abort(
        "fatal-python-error",
        "Fatal Python error: ",
        r"Fatal Python error: (?:Aborted|Bus error|Segmentation)",
        is_oom=None,
    ),
    _segmentation_fault_or_abort(
        "signal-crashed",
        "ignal",
        r"ignals?[\s:.=(]{0,4}(?:(?:11|6|7)(?![0-9])|SIGSEGV|SIGABRT|SIGBUS|Bus error)",
        is_oom=None,
    ),
    _notebook_crashed_host("colab-crashed", "session crashed after using all available RAM"),
    _notebook_crashed_host(
        "kaggle-restarted", "notebook tried to allocate more memory than is available"
    ),
    _notebook_crashed(
        "notebook-session-crashed",
        "session crashed",
        r"session crashed(?! after using all available RAM)",
        is_oom=None,
    ),
    _notebook_crashed(
        "notebook-kernel-appears-dead",
        "appears to have died",
        only_after=r"[Kk]ernel[^\n]{0,80}$",
        is_oom=None,
    ),
    _notebook_crashed("notebook-kernel-died", "ernel died", is_oom=None),
    _notebook_crashed("notebook-kernel-crashed", "ernel crashed", is_oom=None),
)
