"""All patches of internal names of the package; no other file of the tests patches internals.

The first argument sets attributes: pytest's `monkeypatch`, or `FOR_GOOD` in a separate process.
`around_*` replaces the named function by a call of `function(original, *args)`.
"""

import pkgutil
from functools import partial, wraps
from types import SimpleNamespace

FOR_GOOD = SimpleNamespace(setattr=setattr)


def _set(patch, name, value):
    owner, _, attribute = name.rpartition(".")
    patch.setattr(pkgutil.resolve_name(f"nmfscale.{owner}"), attribute, value)


def _around(patch, name, function):
    original = pkgutil.resolve_name(f"nmfscale.{name}")

    # a function, not a partial, so that it may be a method
    @wraps(original)
    def called(*args, **options):
        return function(original, *args, **options)

    _set(patch, name, called)


def _noted(patch, init):
    """Return a list that records every object initialised by `init`."""
    found = []

    def note(original, self, *args, **options):
        original(self, *args, **options)
        found.append(self)

    _around(patch, init, note)
    return found


# The command line -------------------------------------------------------------------------------


def make_parser_by(patch, function):
    """Replace the function that builds the parser of the command line."""
    _set(patch, "cli.arguments.make_parser", function)


def around_bootstrap_weights(patch, function):
    """Wrap the bootstrap of balanced weights, for Python and the shell."""
    _around(patch, "inference.groups.bootstrap.bootstrap_weights", function)


# Counts and files -----------------------------------------------------------------------------


def small_blocks(patch, n_nonzeros):
    """Cut counts into blocks of at most this many nonzeros."""
    _set(patch, "counts.blocks.BLOCK_NONZEROS", n_nonzeros)


def small_panels(patch, n_entries):
    """Cut columns into panels of at most this many entries, or of one slice."""
    _set(patch, "engine.local._SMALL_PANEL", n_entries)
    _set(patch, "engine.local._SLICES_A_THREAD", 0)


def few_features_together(patch, n_entries):
    """Fit frequencies in groups for features with this many entries at a time."""
    _set(patch, "methods.topics.group_frequencies._ENTRIES", n_entries)


def around_column_steps(patch, function):
    """Wrap the work on one panel of columns, in this process."""
    _around(patch, "engine.local.run_column_step", function)


def threads_share_small_blocks(patch):
    """Arrange even small blocks on several threads."""
    _set(patch, "counts.sell._LEAST_SHARE", 1)


def around_weigh(patch, function):
    """Wrap the multiplication of counts by weights of samples."""
    _around(patch, "counts.sell.weigh", function)


def around_count_columns(patch, function):
    """Wrap the function that counts the entries of a block's columns."""
    _around(patch, "counts.sell.count_columns", function)


def around_layout(patch, function):
    """Wrap the layout of counts in memory."""
    _around(patch, "counts.memory.Counts.layout", function)


def small_pieces(patch, n_bytes):
    """Read files in pieces of this many bytes."""
    _set(patch, "readers.streams.file_counts._PIECE_BYTES", n_bytes)


def around_spill(patch, function):
    """Wrap the function that writes a sorted run to a temporary file."""
    _around(patch, "readers.sources.external_sort._Run.spill", function)


def no_room_for_columns(patch):
    """Let the disk be full where columns of a stream are written; return the files opened."""
    files = []

    def open_file(dir):
        files.append(open("/dev/full", "wb"))
        return files[-1]

    on_full_disk = SimpleNamespace(gettempdir=lambda: "/full", TemporaryFile=open_file)
    _set(patch, "counts.panels.tempfile", on_full_disk)
    return files


def retry_for(patch, seconds):
    """Retry failed reads for this many seconds."""
    _set(patch, "storage.atomic.RETRY_SECONDS", seconds)


def wait_for_locks(patch, seconds):
    """Wait this many seconds for an HDF5 file that another program has locked."""
    _set(patch, "storage.hdf5.LOCK_SECONDS", seconds)


def small_calls(patch, n_bytes):
    """Read and write at most this many bytes in one system call."""
    _set(patch, "storage.atomic.CALL_BYTES", n_bytes)


def no_files_without_a_name(patch):
    """Write new files under a temporary name, as on systems without O_TMPFILE."""
    _set(patch, "storage.atomic._OPEN_FILES", "/nowhere")


def demo_corpus(patch, counts):
    """Make the demo use these counts."""
    _set(patch, "datasets.corpora.docstrings", lambda: counts)


def small_ranges(patch, n_rows):
    """Measure the quality of topics in ranges of this many rows."""
    _set(patch, "inference.choice.coherence._LEAST_ROWS", n_rows)


def few_windows(patch, n_windows):
    """Count this many windows of a text at a time."""
    _set(patch, "methods.topics.coherence._WINDOWS", n_windows)


def small_blocks_of_samples(patch, n_samples, n_queries):
    """Compute the distances of so many samples and queries at a time."""
    _set(patch, "methods.topics.nearest._SAMPLES", n_samples)
    _set(patch, "methods.topics.nearest._QUERIES", n_queries)


# Memory and processors ------------------------------------------------------------------------


def plan(patch, keep, folder=None):
    """Plan to keep counts in memory or to read them again; loadings are in `folder` if given."""
    from nmfscale.engine.memory import Plan

    _set(patch, "models.base.plan_fit", lambda *_, **__: Plan(0, keep, folder))


def around_plan(patch, function):
    """Where a fit plans its memory: `function(original, counts, needs, ...)`."""
    _around(patch, "models.base.plan_fit", function)


def around_stream(patch, function):
    """Where loadings of new rows plan their memory: `function(original, counts, needs, ...)`."""
    _around(patch, "models.transform.check_stream", function)


def read_anew(patch, folder=None):
    """Plan to read the counts from their file in every iteration."""
    plan(patch, False, folder)


def limit_is_all_memory(patch):
    """Give a computation its whole memory limit, whatever the process already uses."""
    _set(patch, "engine.memory._held_and_limit", lambda limit: (0, limit or 1 << 60))


def processors(patch, number):
    """Pretend that the process has this many processors."""
    _set(patch, "engine.threads.available_processors", lambda: number)


def processor_quota(patch, quota):
    """Pretend that the control group of the process has this quota of processors."""
    _set(patch, "engine.threads._group_quota", lambda: quota)


def fits_together(patch, number):
    """Let this many bootstrap fits share the reads of a file, whatever memory is free."""
    _set(patch, "inference.replicates.shared_fits.fits_within", lambda *_: number)


# Methods --------------------------------------------------------------------------------------


def always_momentum(patch):
    """Extrapolate from the first iteration, however fast the objective rises."""
    _set(patch, "methods.poisson.schedule.WARMUP_ABOVE", float("inf"))


def any_fall_goes_back(patch):
    """Return to the best point whenever the log-likelihood falls."""
    _set(patch, "methods.poisson.schedule.GAIN_OVER", 1)


def no_late_iterations(patch):
    """Recompute the diagonal of the curvature in every iteration."""
    _set(patch, "methods.poisson.schedule.LATE_BELOW", -float("inf"))


def around_change_of_type(patch, function):
    """Wrap the change of a fit to another dtype: `function(original, model, dtype)`."""
    _around(patch, "methods.poisson.newton.Newton._as_type", function)


def around_choice_of_steps(patch, function):
    """Wrap the choice of an iteration's steps: `function(original, schedule, iteration)`."""
    _around(patch, "methods.poisson.schedule.MomentumSchedule.updates", function)


def seeded_start(patch, factors):
    """Start topics with seeds from these factors (m, K)."""
    _set(patch, "methods.poisson.solvers.seeded_factors", lambda *arguments: factors)


def no_start(patch):
    """Make the computation of a start fail."""
    _set(patch, "methods.poisson.solvers.initialize", None)
    _set(patch, "methods.ssnmf.multiplicative.random_start", None)


def around_newton_steps(patch, function):
    """Wrap the Newton steps of rows of A or B: `function(original, model, rows, *arguments)`."""
    _around(patch, "methods.ssnmf.descent.CoordinateDescent._newton", function)


def around_local_steps(patch, function):
    """Wrap a pass over blocks in this process: `function(original, executor, *steps)`."""
    _around(patch, "engine.local.LocalExecutor.run", function)


def note_executors(patch):
    """Return a list that records the executors of all fits on a cluster."""
    return _noted(patch, "engine.remote.DaskExecutor.__init__")


def draw_rows_of(patch, n_nonzeros):
    """Search anchors in random rows with about this many nonzeros."""
    _set(patch, "methods.starts.topic_score.MAX_NONZEROS", n_nonzeros)


def few_projection_steps(patch):
    """Compute loadings of new rows with few steps."""
    from nmfscale.methods.projection.transform import projection

    _set(patch, "models.held_factors.projection", partial(projection, n_steps=2))


def no_projection(patch):
    """Make the computation of loadings of new rows fail."""
    _set(patch, "models.held_factors.projection", None)


def around_blocks_of_rows(patch, function):
    """Wrap the blocks of loadings of new rows: `function(original, work, **options)`."""
    _around(patch, "methods.rows_pass.RowsPass.blocks", function)


def around_row_blocks(patch, function):
    """Where a block of new rows is brought in the order of the counts."""
    _around(patch, "methods.rows_pass.from_lanes", function)


# Clusters -------------------------------------------------------------------------------------


def save_every(patch, n_iterations):
    """Save loadings on a cluster every `n_iterations` iterations, even if they are small."""
    _set(patch, "engine.session._SAVE_ALWAYS", 0)
    _set(patch, "engine.session._SAVE_EVERY", n_iterations)


def stream_together(patch, number):
    """Let so many results of a stream wait in this process for each task that workers do."""
    _set(patch, "engine.remote._STREAMED", number)


def keep_recent_factors(patch, number):
    """Keep this many of the factors that were sent to workers."""
    _set(patch, "engine.fit_files._RECENT_SHARED", number)


def no_active_client(patch):
    """Compute in this process even if a client is active."""
    _set(patch, "engine.workers.active_client", lambda: None)


def workers_see(patch, store, folder):
    """Make workers report that they do not see the store or the folder of the fit."""
    _set(patch, "engine.workers.probe", partial(_probe, store, folder))


def _probe(store, folder, *args):
    from nmfscale.engine.workers import probe

    seen = probe(*args)
    return seen._replace(
        sees_store=seen.sees_store and store, sees_folder=seen.sees_folder and folder
    )


def retry_policy(patch, **options):
    """Change the default retry policy of fits."""
    from nmfscale.cluster.tasks import RetryPolicy

    _set(patch, "cluster.pool.RetryPolicy", lambda: RetryPolicy(**options))


def around_results(patch, function):
    """Where this process waits for the results of tasks: `function(original, batch, note)`."""
    _around(patch, "cluster.batch.TaskBatch.results", function)


def note_pools(patch):
    """Return a list that records the worker pools of all fits."""
    return _noted(patch, "cluster.pool.WorkerPool.__init__")


def note_sessions(patch):
    """Return a list that records the arguments of every session on a cluster."""
    found = []

    def note(open_session, *args, **options):
        found.append(args)
        return open_session(*args, **options)

    _around(patch, "engine.session.open_session", note)
    return found


def perform_by(patch, function):
    """Make workers run a task by `function(task_function, args, data)`."""
    _set(patch, "cluster.pool.WorkerPool.perform", staticmethod(function))


def around_run(patch, function):
    """Wrap the run of a batch: `function(original, pool, name, function, tasks, ...)`."""
    _around(patch, "cluster.pool.WorkerPool.run", function)


def around_each(patch, function):
    """Wrap the call of a function on every worker: `function(original, pool, ...)`."""
    _around(patch, "cluster.pool.WorkerPool.each", function)


def around_forget_all(patch, function):
    """Wrap the release of data sent to workers: `function(original, pool, but)`."""
    _around(patch, "cluster.pool.WorkerPool.forget_all", function)


def around_take(patch, function):
    """Wrap the fetch of a task's result: `function(original, batch, attempt)`."""
    _around(patch, "cluster.batch.TaskBatch.take", function)


# On a worker ----------------------------------------------------------------------------------


def around_work(patch, kind, function):
    """Wrap the work of tasks that update "rows" or sum over "columns"."""

    def work(run, context, step_run, tree):
        if step_run.step.reads == kind:
            return function(run, context, step_run, tree)
        return run(context, step_run, tree)

    _around(patch, "engine.worker.TaskContext.run", work)


def open_session_by(patch, function):
    """Replace the function that opens the session of a fit on a cluster."""
    _set(patch, "engine.session.open_session", function)


def around_slices(patch, function):
    """Wrap the counts of a block on a worker: `function(original, context, order)`."""
    _around(patch, "engine.worker.TaskContext.counts", function)


def columns_in_whole_blocks(patch):
    """Let no columns of blocks be divided among workers."""
    _set(patch, "engine.division.worth_reading", lambda *numbers: False)


def reading_costs(patch, n_counts):
    """Let the loadings of a sample take as long to read as the work on so many counts."""
    _set(patch, "engine.division.COUNTS_OF_READ", n_counts)


def note_divisions(patch, order):
    """Return a list that records every division of a run."""
    found = []

    def note(divide, *args):
        found.append(divide(*args))
        return found[-1]

    _around(patch, f"engine.division.Division.{order}", note)
    return found


def keep_counts(patch, n_bytes):
    """Keep counts of this many bytes in the memory of a worker."""
    _set(patch, "engine.caches.COUNTS.most_bytes", n_bytes)


def around_save(patch, function):
    """Wrap the function that saves arrays on a worker: `function(original, path, arrays)`."""
    _around(patch, "engine.worker.save_arrays", function)


def around_fit_of_replicate(patch, function):
    """Wrap the fit of a bootstrap: `function(original, task, drawn, n_threads, counts)`."""
    _around(patch, "inference.replicates.refits.WeightedRefits._fit", function)


def around_fit_of_selection(patch, function):
    """Wrap the fits of `select_k`: `function(original, task, folds, number, *words, **options)`."""
    _around(patch, "inference.replicates.selection_fits.SelectionTask._fit", function)


def around_excess_variance(patch, function):
    """Wrap what `select_k` computes after its first fits: `function(original, *arguments)`."""
    _around(patch, "inference.choice.split_fits.excess_variance", function)


def count_rows_read(patch):
    """Return a list to which each read of rows of a packed store adds their number."""
    found = []

    def note(original, self, start, stop):
        found.append(stop - start)
        return original(self, start, stop)

    _around(patch, "storage.store.StoredCounts._pieces", note)
    return found


def halves_and_seeds(random_state):
    """Return the thinning of the first split of `select_k`, and the seeds of its first fits."""
    from numpy.random import SeedSequence

    from nmfscale.inference.replicates.folds import Folds
    from nmfscale.inference.replicates.seeds import child

    seed = child(SeedSequence(random_state), 0)
    folds = Folds(None, 2, child(seed, 0), None)
    fits = child(seed, 1)
    seeds = [int(child(fits, i).generate_state(1)[0]) % (2**31 - 1) for i in range(2)]
    return folds._thinning, seeds


def package_version(patch, version, rooms=("workers", "worker")):
    """Change the version of a worker: in its reports, in its tasks, or in both."""
    for room in rooms:
        _set(patch, f"engine.{room}.package_version", lambda: version)


def available_levels(patch, levels):
    """Pretend that the processor has these instruction sets."""
    _set(patch, "kernels.available_levels", lambda: levels)


# Replicates -----------------------------------------------------------------------------------


def after_a_batch(patch, function):
    """Call a function after a batch of replicates, before its results are stored."""

    def note(original, *args):
        original(*args)
        function()

    _around(patch, "inference.replicates.replicates._Sizes.note", note)


def small_batches_of_labellings(patch):
    """Let batches of labellings begin with one, as those of other replicates do."""
    _set(patch, "inference.groups.labelling._TOGETHER", 1)


def before_replicates(patch, function):
    """Call a function before the first batch of replicates."""

    def resolve(original, *args):
        function()
        return original(*args)

    _around(patch, "inference.replicates.replicates.resolve_threads", resolve)


def around_solve(patch, function):
    """Wrap the solve of the jackknife for one number."""
    _around(patch, "methods.poisson.profile.ProfileHessian.solve", function)


def few_samples_are_many(monkeypatch, n):
    """Warn about samples as units if a group has at least n."""
    monkeypatch.setattr("nmfscale.inference.design.groups.MANY_SAMPLES", n)


def free_memory_for_pairs(patch, n_bytes):
    """Let tests of pairs of groups use this much memory, and start no work."""
    _set(patch, "inference.groups.labelling.free_memory", lambda: n_bytes)
    _set(patch, "inference.regression.permutation.labelled_sets", None)


def set_pvalues_in_memory(patch, number):
    """Let the adjustment of p-values of pairs have this many in memory at a time."""
    _set(patch, "inference.groups.pvalues._PVALUES", number)


def set_replicates_of_pairs_in_memory(patch, n_entries):
    """Let differences between groups have this many entries of replicates at a time."""
    _set(patch, "inference.regression.effects_result._REPLICATES", n_entries)


# Many topics --------------------------------------------------------------------------------------


def all_components_of_a_row(patch):
    """Update rows of many components like rows of few components."""
    _set(patch, "methods.projection.transform.ACTIVE_ABOVE", 1 << 30)


def small_pieces_of_rows(patch):
    """Report progress of loadings after every slice of rows."""
    _set(patch, "methods.slices._PIECE", 1)
    _set(patch, "methods.slices._PIECE_SLICES", 1)


def progress_at_once(patch):
    """Show progress of short work, too."""
    _set(patch, "engine.progress._DELAY", 0)
    _set(patch, "engine.progress._EVERY", 0)
    _set(patch, "terminal._SHARE", 0)
    _set(patch, "terminal._LEAST", 0)


def around_advance(patch, function):
    """Wrap the function that counts finished samples."""
    _around(patch, "engine.progress.advance", function)


def no_room_for_parts(patch):
    """Keep parts of counts out of memory: in stores, or read from their source in every pass."""
    _set(patch, "engine.memory._SHARE", 0.0)
