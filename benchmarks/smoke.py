"""Run every benchmark on a small problem, in one process so that modules are imported once.

    python benchmarks/smoke.py                  all benchmarks
    python benchmarks/smoke.py lda bootstrap    only these benchmarks

The run stops at the first benchmark that fails. Results are not kept.
"""

import os
import runpy
import shlex
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# RESULTS is replaced by a temporary folder. Benchmarks without --smoke get small problems.
RUNS = """
    run.py --smoke
    out_of_core.py --problem simulated-small --nonzeros 2e4 --repeats 1 --results RESULTS
    curvature.py --problems simulated-small:18 --max-iter 12 --results RESULTS
    cluster.py --smoke
    cluster_layouts.py --smoke
    cluster_schedule.py --smoke
    minibatch.py --smoke
    lda.py --smoke
    short_documents.py --smoke
    text_starts.py --smoke
    gamma_poisson.py --smoke
    noisy_topics.py --smoke
    noisy_topics.py --rates --smoke
    anchors.py --smoke
    frobenius.py --smoke
    bootstrap.py --smoke
    permutation.py --smoke
    convergence.py --smoke
    convergence.py --ends --smoke
    optima.py --smoke
    starts.py --smoke
    calibration.py --smoke
    designs.py --smoke
    calibration_features.py --smoke
    batches.py --smoke
    batches_real.py --smoke
    ssnmf_dense.py --smoke
    ssnmf.py --smoke
    many_topics.py --smoke
    kernels.py --problem simulated-small --topics 6 18 --repeats 1 --results RESULTS
    kernels.py --weights --problem simulated-small --topics 6 --repeats 1 --results RESULTS
    select_k.py --smoke
    quality.py --smoke
    differential.py --smoke
    conditions.py --smoke
    scaling.py --problem simulated-small --nonzeros 2e4 --topics 5 --results RESULTS
    random_starts.py --problems simulated-small --starts 2 --max-iter 12 --results RESULTS
    papers/carbonetto_fits.py --smoke
    papers/carbonetto_lda.py --smoke
    papers/carbonetto_simulated.py --smoke
    papers/carbonetto_topics.py --smoke
    papers/geiger_equalities.py --smoke
    solver_curves.py --problems simulated-small --max-iter 5 --repeats 1 --results RESULTS
    papers/haddock_synthetic.py --smoke
    papers/haddock_news.py --smoke
    papers/noisy_note.py --smoke
    papers/phelan_beers.py --smoke
    papers/phelan_level.py --smoke
    papers/phelan_units.py --smoke
    papers/geiger_joint.py --smoke
    papers/geiger_models.py --smoke
    papers/geiger_sparsity.py --smoke
"""


def main() -> None:
    """Run the named benchmarks, or all of them."""
    lines = [line for line in RUNS.split("\n") if line.strip()]
    names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as results:
        for line in lines:
            script, *options = shlex.split(line)
            if names and script.removesuffix(".py") not in names:
                continue
            path = str(HERE / script)
            sys.path[0] = str(Path(path).parent)  # as if the script were run itself
            sys.argv = [path, *(results if word == "RESULTS" else word for word in options)]
            print(f"\n=== {line.strip()}", flush=True)
            start, cpu = time.perf_counter(), os.times()
            runpy.run_path(path, run_name="__main__")
            spent = sum(os.times()[:4]) - sum(cpu[:4])
            elapsed = time.perf_counter() - start
            print(f"=== {script}: {elapsed:.1f} s, {spent:.1f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
