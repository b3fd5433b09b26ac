"""The trainings of a study as a SLURM array: one job a run, which resumes itself and is queued again when stopped."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hexa_paper import results
from hexa_paper.plan import Job, Plan
from hexa_paper.request import refuse
from hexa_paper.running import arguments_of

_HEAD = """#!/bin/bash
# {count} trainings of {title}.
#SBATCH --job-name=hexa
#SBATCH --array=0-{last}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node={processes}
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A-%a.log

case "$SLURM_ARRAY_TASK_ID" in
"""
_TAIL = """esac

if [ -e "$RUN/config.yaml" ]; then
    COMMAND=(resume "$RUN")
fi
srun torchrun --standalone --nproc-per-node {processes} --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2 \\
    -m hexa "${{COMMAND[@]}}"

# stopped by a signal, having saved: queue again; done, or stopped by an error: don't
if tail -n 1 "$RUN/metrics.jsonl" | grep -q '"event": "interrupted"'; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
"""
#: GPUs of a job unless --processes is given.
_GPUS = 8


def write_script(plans: Sequence[Plan], path: Path) -> None:
    """Write an sbatch file that trains what is missing, each run on one machine. Raises UserError if nothing is.

    A run whose teacher is not trained yet is left out: jobs of an array run at the same time.
    """
    processes = plans[0].request.processes or _GPUS
    jobs: dict[str, tuple[Job, Path]] = {}
    for plan in plans:
        out = plan.request.folder
        for job in plan.waiting():
            if not job.teacher or results.is_trained(out, job.teacher):
                jobs[job.name] = (job, out)
    refuse(
        not jobs, "--slurm: every run is trained; give the command without --plan to evaluate them"
    )
    title = ", ".join(dict.fromkeys(plan.study.name for plan in plans))
    text = _HEAD.format(count=len(jobs), title=title, last=len(jobs) - 1, processes=processes)
    for number, (job, out) in enumerate(jobs.values()):
        run = shlex.quote(str(results.run_folder(out, job.name)))
        text += f"{number})\n    RUN={run}\n    COMMAND=({shlex.join(arguments_of(job, out))})\n    ;;\n"
    results.write(path, text + _TAIL.format(processes=processes))
