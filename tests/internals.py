"""Every change to internal names of the package: no other file of the tests makes one.

The first argument sets attributes: pytest's `monkeypatch`, or `FOR_GOOD` in a process of its own.
`around_*` call `function(original, *args)` in place of what they name.
"""

import pkgutil
from functools import partial
from types import SimpleNamespace

FOR_GOOD = SimpleNamespace(setattr=setattr)


def _set(patch, name, value):
    owner, _, attribute = name.rpartition(".")
    patch.setattr(pkgutil.resolve_name(f"nmfscale.{owner}"), attribute, value)


def _around(patch, name, function):
    original = pkgutil.resolve_name(f"nmfscale.{name}")
    # a function, not a partial, so that it may be a method
    _set(patch, name, lambda *args, **options: function(original, *args, **options))


def _noted(patch, init):
    """Return a list to which every object is added that is initialized there."""
    found = []

    def note(original, self, *args, **options):
        original(self, *args, **options)
        found.append(self)

    _around(patch, init, note)
    return found


# The command line -------------------------------------------------------------------------------


def make_parser_by(patch, function):
    """Call a function in place of the one that makes the parser of the command line."""
    _set(patch, "cli.arguments.make_parser", function)


def around_bootstrap_weights(patch, function):
    """Where balanced weights are bootstrapped, for Python and the shell."""
    _around(patch, "inference.bootstrap.bootstrap_weights", function)


# Counts and files -----------------------------------------------------------------------------


def small_blocks(patch, n_nonzeros):
    """Cut counts into blocks of at most so many nonzeros."""
    _set(patch, "counts.blocks.BLOCK_NONZEROS", n_nonzeros)


def threads_share_small_blocks(patch):
    """Arrange a block on several threads however small it is."""
    _set(patch, "counts.sell._LEAST_SHARE", 1)


def around_weigh(patch, function):
    """Where counts are multiplied by the weights of samples."""
    _around(patch, "counts.sell.weigh", function)


def around_count_columns(patch, function):
    """Where the entries of a block's columns are counted."""
    _around(patch, "counts.sell.count_columns", function)


def around_layout(patch, function):
    """Where counts in memory are cut into blocks."""
    _around(patch, "counts.memory.Counts.layout", function)


def small_pieces(patch, n_bytes):
    """Read files in pieces of so many bytes."""
    _set(patch, "readers.file_counts._PIECE_BYTES", n_bytes)


def around_spill(patch, function):
    """Where a sorted run goes to a temporary file."""
    _around(patch, "readers.external_sort._Run.spill", function)


def retry_for(patch, seconds):
    """Try reads that fail again for so long."""
    _set(patch, "storage.atomic.RETRY_SECONDS", seconds)


def wait_for_locks(patch, seconds):
    """Wait so long for an HDF5 file that another program holds."""
    _set(patch, "storage.hdf5.LOCK_SECONDS", seconds)


def small_calls(patch, n_bytes):
    """Read and write at most so many bytes in a call of the system."""
    _set(patch, "storage.atomic.CALL_BYTES", n_bytes)


def no_files_without_a_name(patch):
    """Write new files under a temporary name, as on systems without O_TMPFILE."""
    _set(patch, "storage.atomic._OPEN_FILES", "/nowhere")


def demo_corpus(patch, counts):
    """Let the demo use these counts."""
    _set(patch, "datasets.corpora.docstrings", lambda: counts)


# Memory and processors ------------------------------------------------------------------------


def plan(patch, keep, folder=None):
    """Keep what is read of the counts or read it anew; loadings go to the folder if given."""
    from nmfscale.engine.memory import Plan

    _set(patch, "models.base.plan_fit", lambda *_, **__: Plan(0, keep, folder))


def read_anew(patch, folder=None):
    """Read the counts from their file in every iteration."""
    plan(patch, False, folder)


def limit_is_all_memory(patch):
    """Let a computation have all of its memory limit, whatever the process holds already."""
    _set(patch, "engine.memory._held_and_limit", lambda limit: (0, limit or 1 << 60))


def processors(patch, number):
    """Let the process have so many processors."""
    _set(patch, "engine.threads.available_processors", lambda: number)


def processor_quota(patch, quota):
    """Let the control group of the process have so many processors."""
    _set(patch, "engine.threads._group_quota", lambda: quota)


def fits_together(patch, number):
    """Let so many bootstrap fits share the reads of a file, whatever memory there is."""
    _set(patch, "inference.refit.fits_within", lambda *_: number)


# Methods --------------------------------------------------------------------------------------


def always_momentum(patch):
    """Extrapolate from the first iteration, however steep the climb."""
    _set(patch, "methods.poisson.newton.WARMUP_ABOVE", float("inf"))


def any_fall_goes_back(patch):
    """Go back to the best point whenever the log-likelihood falls."""
    _set(patch, "methods.poisson.newton.GAIN_OVER", 1)


def no_late_iterations(patch):
    """Compute the diagonal of the curvature anew in every iteration."""
    _set(patch, "methods.poisson.newton.LATE_BELOW", -float("inf"))


def around_change_of_type(patch, function):
    """Where a fit goes on in another type: `function(original, model, dtype)`."""
    _around(patch, "methods.poisson.newton.Newton._as_type", function)


def around_choice_of_steps(patch, function):
    """Where the steps of an iteration are chosen: `function(original, schedule, iteration)`."""
    _around(patch, "methods.poisson.newton.MomentumSchedule.updates", function)


def no_start(patch):
    """Fail where the start of a fit would be computed."""
    _set(patch, "methods.poisson.solvers.initialize", None)
    _set(patch, "methods.ssnmf.multiplicative.random_start", None)


def around_newton_steps(patch, function):
    """Where rows of A or B take a Newton step: `function(original, model, rows, *given)`."""
    _around(patch, "methods.ssnmf.descent.CoordinateDescent._newton", function)


def note_executors(patch):
    """Return a list to which the executors of all fits on a cluster are added."""
    return _noted(patch, "engine.remote.DaskExecutor.__init__")


def draw_rows_of(patch, n_nonzeros):
    """Look for anchors in rows drawn at random that have about so many nonzeros."""
    _set(patch, "methods.poisson.topic_score._MAX_NONZEROS", n_nonzeros)


def few_projection_steps(patch):
    """Compute loadings of new rows roughly."""
    from nmfscale.methods.transform import Projection

    _set(patch, "models.held_factors.Projection", partial(Projection, n_steps=2))


def no_projection(patch):
    """Fail where loadings of new rows would be computed."""
    _set(patch, "models.held_factors.Projection", None)


def around_projected_blocks(patch, function):
    """Where loadings of new rows are computed block by block: `function(original, projection)`."""
    _around(patch, "methods.transform.Projection.blocks", function)


# Clusters -------------------------------------------------------------------------------------


def save_every(patch, n_iterations):
    """Save loadings on a cluster once in so many iterations, however small they are."""
    _set(patch, "engine.session._SAVE_ALWAYS", 0)
    _set(patch, "engine.session._SAVE_EVERY", n_iterations)


def save_sums_below(patch, n_bytes):
    """Save the sums of a task on a cluster if they are smaller than this."""
    _set(patch, "engine.remote._SAVED_SUMS", n_bytes)


def keep_recent_factors(patch, number):
    """Keep so many of the factors that were sent to workers."""
    _set(patch, "engine.remote._RECENT_SHARED", number)


def no_active_client(patch):
    """Compute in this process, though a client is active."""
    _set(patch, "engine.workers.active_client", lambda: None)


def workers_see(patch, store, folder):
    """Let workers say whether they see the store and the folder of the fit, if they do."""
    _set(patch, "engine.workers.probe", partial(_probe, store, folder))


def _probe(store, folder, *args):
    from nmfscale.engine.workers import probe

    seen = probe(*args)
    return seen._replace(
        sees_store=seen.sees_store and store, sees_folder=seen.sees_folder and folder
    )


def retry_policy(patch, **options):
    """Give fits another retry policy than the default."""
    from nmfscale.cluster.tasks import RetryPolicy

    _set(patch, "cluster.pool.RetryPolicy", lambda: RetryPolicy(**options))


def note_pools(patch):
    """Return a list to which the worker pools of all fits are added."""
    return _noted(patch, "cluster.pool.WorkerPool.__init__")


def note_sessions(patch):
    """Return a list to which the arguments of every session on a cluster are added."""
    found = []

    def note(open_session, *args, **options):
        found.append(args)
        return open_session(*args, **options)

    _around(patch, "engine.session.open_session", note)
    return found


def perform_by(patch, function):
    """Let workers perform a task by `function(its function, args, given)`."""
    _set(patch, "cluster.pool.WorkerPool.perform", staticmethod(function))


def around_run(patch, function):
    """Where a batch of tasks is run: `function(original, pool, name, function, tasks, ...)`."""
    _around(patch, "cluster.pool.WorkerPool.run", function)


def around_each(patch, function):
    """Where every worker is asked something: `function(original, pool, ...)`."""
    _around(patch, "cluster.pool.WorkerPool.each", function)


def around_forget_all(patch, function):
    """Where what was sent to workers is dropped: `function(original, pool, but)`."""
    _around(patch, "cluster.pool.WorkerPool.forget_all", function)


def around_take(patch, function):
    """Where the result of a task is fetched: `function(original, batch, attempt)`."""
    _around(patch, "cluster.batch.TaskBatch.take", function)


# On a worker ----------------------------------------------------------------------------------


def around_work(patch, kind, function):
    """Where the time of a task goes that updates "rows" or sums over "columns"."""

    def work(run, context, step_run):
        if step_run.step.reads == kind:
            return function(run, context, step_run)
        return run(context, step_run)

    _around(patch, "engine.worker.TaskContext.run", work)


def around_slices(patch, function):
    """Where a worker takes the counts of a block: `function(original, context, order)`."""
    _around(patch, "engine.worker.TaskContext.counts", function)


def around_save(patch, function):
    """Where a worker saves arrays: `function(original, path, arrays)`."""
    _around(patch, "engine.worker.save_arrays", function)


def around_fit_of_replicate(patch, function):
    """Where a bootstrap fits to one draw: `function(original, task, drawn, n_threads, counts)`."""
    _around(patch, "inference.refit.RefitTask._fit", function)


def package_version(patch, version, rooms=("workers", "worker")):
    """Let a worker have another version: in what it says of itself, in its tasks, or in both."""
    for room in rooms:
        _set(patch, f"engine.{room}.package_version", lambda: version)


def available_levels(patch, levels):
    """Let the processor have these instruction sets."""
    _set(patch, "kernels.available_levels", lambda: levels)


# Replicates -----------------------------------------------------------------------------------


def after_a_batch(patch, function):
    """Call a function when a batch of replicates is done, before its results are kept."""

    def note(original, *given):
        original(*given)
        function()

    _around(patch, "inference.replicates._Sizes.note", note)


def before_replicates(patch, function):
    """Call a function before the first batch of replicates is begun."""

    def resolve(original, *given):
        function()
        return original(*given)

    _around(patch, "inference.replicates.resolve_threads", resolve)


def around_solve(patch, function):
    """Where the jackknife solves for one number."""
    _around(patch, "methods.poisson.profile.ProfileHessian.solve", function)


def few_samples_are_many(monkeypatch, n):
    """Warn of samples as units from so many in a group on."""
    monkeypatch.setattr("nmfscale.inference.groups.MANY_SAMPLES", n)


# Many topics --------------------------------------------------------------------------------------


def all_components_of_a_row(patch):
    """Move rows of any number of components as those of a few are moved."""
    _set(patch, "methods.transform.ACTIVE_ABOVE", 1 << 30)


def small_pieces_of_rows(patch):
    """Give news of loadings after every slice of rows."""
    _set(patch, "methods.slices._PIECE", 1)
    _set(patch, "methods.slices._PIECE_SLICES", 1)


def progress_at_once(patch):
    """Show short work, too."""
    _set(patch, "engine.progress._DELAY", 0)
    _set(patch, "engine.progress._EVERY", 0)


def around_advance(patch, function):
    """Where samples that are done are counted."""
    _around(patch, "engine.progress.advance", function)
