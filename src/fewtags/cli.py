"""The command line: one function per command that parses options, calls the library and prints.

torch and everything else that is slow to import is imported inside the commands, so that `--help` is instant.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer

from fewtags.cli_options import (
    AnyModel,
    AnyRun,
    ClusterOptions,
    Data,
    Device,
    InferenceOptions,
    Json,
    LoggerOptions,
    Moved,
    Quiet,
    ReaderOptions,
    RunOrTagger,
    SettingOptions,
    TagReaderOptions,
    ThresholdOptions,
    TrainingReaderOptions,
    grouped,
    named_values,
)
from fewtags.errors import RunFailed, UserError
from fewtags.renamed import MethodRenamed

app = typer.Typer(
    name="fewtags",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich and its Markdown parser would take half of the time of `--help`
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a multi-label image tagger when only a few of the tags are known.\n\n"
    "Tags that are not listed are *unknown*, not absent. Start with `fewtags demo`, or with your own images: "
    "`fewtags check photos/ --tags tags.csv`, then `fewtags train photos/ --tags tags.csv`.",
)


def main() -> None:
    """Run a command; an error the user can fix is printed as one sentence, with its exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what saves its work on Ctrl-C saves it for a scheduler
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(standalone_mode=False, prog_name="fewtags")  # None, or the code of a typer.Exit
    except UserError as error:
        _stop(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:  # disk full, no permission, a file in place of a folder
        if error.filename is None and error.errno is None:
            raise
        _stop(f"{error.filename or 'A file'} cannot be used: {error.strerror}.", RunFailed.exit_code)
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise  # our bug: keep the traceback
        _stop(_usage_message(error), int(error.exit_code))
    if code == 130:
        _stop("Interrupted.", 130)
    sys.exit(code or 0)


@app.callback()
def fewtags(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from fewtags import __version__

        print(f"fewtags {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:  # not an error: show the help
        print(context.get_help())


def _usage_message(error: Any) -> str:
    """typer's message about wrong arguments, as a sentence, with a pointer to the help."""
    message = error.format_message().replace("Input should", "it should")
    message += "" if message.endswith((".", "?", ")")) else "."
    context = getattr(error, "ctx", None)
    return f"{message} See `{context.command_path} --help`." if context is not None else message


def _say(message: str, quiet: bool) -> None:
    """Before torch is imported, which takes seconds."""
    if not quiet:
        print(message, file=sys.stderr, flush=True)


def _warn(message: str) -> None:
    print(f"fewtags: {message}", file=sys.stderr)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A run under an old name gives a sentence; other warnings look as in Python."""
    if issubclass(category, MethodRenamed):
        _warn(str(message))
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


def _stop(message: str, code: int) -> NoReturn:
    if message:
        print(f"fewtags: {message}", file=sys.stderr)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # its threads must not see Python shut down: `distributed.finish`
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the pictures, the runs and the page.")] = Path(
        "demo-run"
    ),
    methods: Annotated[str, typer.Option(help="Methods to compare, comma-separated.")] = "",
    all_methods: Annotated[bool, typer.Option("--all-methods", help="Compare every method; takes longer.")] = False,
    known: Annotated[float, typer.Option(help="Share of the true tags that training may see.")] = 0.15,
    seed: Annotated[int, typer.Option(help="Another seed draws other pictures.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Few pictures and epochs: only shows that it runs.")] = False,
) -> None:
    """Draw pictures, hide most of their tags, train, and show what was found. Needs no data and no network."""
    from fewtags.commands.demo import run_demo

    names = [name.strip() for name in methods.split(",") if name.strip()]
    run_demo(folder, methods=names, all_methods=all_methods, known=known, seed=seed, quick=quick)


@app.command()
def example(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")] = Path("example"),
    seed: Annotated[int, typer.Option(help="Another seed draws other pictures.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Make a small photo archive to try every command on: drawn pictures with keywords in the files.

    Needs no network: a small backbone for such drawings is part of fewtags.
    """
    from fewtags.commands.example import make_example

    print("\n".join(make_example(folder, seed, quiet=quiet)))


@app.command()
@grouped
def check(
    data: Data,
    *,
    reader: TagReaderOptions,
    propose: Annotated[
        Path | None,
        typer.Option(help="Write likely duplicates (plurals, typos) to this file, for --aliases."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every finding, and count every category.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Audit a dataset before training: every unreadable, missing or duplicate image, odd labels, counts per category.

    Exits with code 3 when training would fail.
    """
    from fewtags.commands.check import check_data

    result, wrote = check_data(data, reader.tags, reader.format, reader.options, propose)
    print(result.to_json() if json else result.render(everything))
    if wrote:
        print(wrote, file=sys.stderr)
    if result.fatal:
        raise typer.Exit(3)


@app.command()
@grouped
def prepare(
    data: Data,
    *,
    out: Annotated[Path, typer.Option(help="Folder to create.")],
    size: Annotated[
        int, typer.Option(min=16, help="input.size of the runs that will use it; 448 in the paper, stored as 512.")
    ] = 224,
    reader: ReaderOptions,
    workers: Annotated[int | None, typer.Option(min=0, help="Threads (default: one per core).")] = None,
    quiet: Quiet = False,
) -> None:
    """Decode and resize all images once, for runs that train the backbone and so read every image in every epoch.

    `fewtags train DATA data.store=OUT` then reads them from there, with the same results. Training images are stored as
    squares of 8/7 of the size, for cropping, the others at the size itself. Run again, the command
    resumes where it was interrupted. Not useful with a frozen backbone: its features are computed only once.
    """
    from fewtags.commands.prepare import prepare_images

    how = reader.tags, reader.format, reader.options
    print(prepare_images(data, *how, out, size, workers=workers, quiet=quiet))


@app.command(context_settings={"ignore_unknown_options": False})
@grouped
def train(
    data: Annotated[
        str | None, typer.Argument(help="Folder or file with images and tags, or a YAML file with settings.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Argument(help="Settings as group.name=value.")] = None,
    *,
    reader: TrainingReaderOptions,
    chosen: SettingOptions,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/DATE-METHOD).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a stopped run to resume.")] = None,
    reviewed: Annotated[
        Path | None,
        typer.Option(help="Train again as this run was, with the decisions of its review."),
    ] = None,
    moved_to: Annotated[
        Path | None,
        typer.Option("--data", help="With --resume, --reviewed: where the run's images are now, if they were moved."),
    ] = None,
    known_proportion: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1, help="Share of the tags that apply that are known, if you know it; else it is estimated."
        ),
    ] = None,
    loggers: LoggerOptions,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved settings and stop.")] = False,
    machines: ClusterOptions,
    quiet: Quiet = False,
) -> None:
    """Train a tagger. Unknown tags are handled by the chosen method, never silently treated as absent.

    `fewtags train photos/ --tags tags.csv` is enough to start; `fewtags train photos/ --categories dog,sea` needs no
    tags at all, as far as the backbone knows the names. Any setting can be given as `group.name=value`:
    `fewtags train voc.yaml method=asl method.gamma_neg=2 train.lr=1e-4`. Ctrl-C saves; `--resume RUN`
    continues exactly there. After `fewtags review RUN`, `fewtags train --reviewed RUN` retrains with the decisions;
    `fewtags compare` shows what they were worth.
    """
    from fewtags.commands.train import resume_run, reviewed_settings, start_run, train_settings

    how: Any = {"quiet": quiet, "loggers": loggers.names}
    shortcuts = reader.settings() | chosen.settings()
    shortcuts |= {} if known_proportion is None else {"head.known_proportion": known_proportion}
    if resume is not None:
        given = {name for name, value in shortcuts.items() if value not in (None, {})}
        if data or settings or out or given - {"train.epochs"}:
            raise UserError("--resume uses the run's settings but for --epochs and --data; remove the other arguments.")
        with machines.joined():
            resume_run(resume, moved_to, chosen.epochs, **how)
        return
    if reviewed is not None:
        others = [*([data] if data else []), *(settings or [])]
        config, decisions = reviewed_settings(reviewed, moved_to, others, shortcuts)
    elif moved_to is not None:
        raise UserError("--data is only for --resume and --reviewed; pass training data without it.")
    else:
        config, decisions = train_settings(data, settings or [], shortcuts), None
    if print_config:
        print(config.to_yaml(), end="")
        return
    with machines.joined():
        start_run(config, out, decisions, **how)


@app.command()
@grouped
def evaluate(
    run: AnyModel,
    data: Annotated[Path | None, typer.Argument(help="Other data to measure on (default: the run's own).")] = None,
    *,
    moved_to: Moved = None,
    reader: ReaderOptions,
    split: Annotated[
        str | None, typer.Option(help="train, val, test, or all of DATA (default: test, else val).")
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="A number, or 'saved' for the model's own.",
            show_default="0.5 with complete labels, as is usual; 'saved' where labels are partial",
        ),
    ] = None,
    per_category: Annotated[bool, typer.Option("--per-category", help="List every category's AP.")] = False,
    min_map: Annotated[
        float | None, typer.Option(min=0, max=1, help="Exit with code 4 when mAP is below this (0 to 1).")
    ] = None,
    json: Json = False,
    device: Device = "auto",
) -> None:
    """Measure a trained model: mAP (plain and VOC-2012), OP/OR/OF1, CP/CR/CF1, by threshold and by top 3.

    Where only some of the tags are known, precision cannot be measured; then mAP, OF1, CF1 and the number of missing
    tags are estimated from the known ones, with 95 % intervals. In scripts, `--min-map 0.6` exits with code 4 when
    mAP is lower.
    """
    from fewtags.commands.evaluate import evaluate_saved, render_scores, scores_json

    if data is not None and moved_to is not None:
        raise UserError("DATA is other data, and --data is where the run's own data is now; pass only one of them.")
    if data is None and (reader.options or reader.format != "auto" or (reader.tags and moved_to is None)):
        raise UserError("--tags, --format and --option say how to read other DATA; pass it after the run.")
    result = evaluate_saved(run, data, reader.tags, reader.format, reader.options, split, threshold, device, moved_to)
    for warning in result.warnings:
        print(f"fewtags: {warning}", file=sys.stderr)
    print(scores_json(result) if json else render_scores(result, per_category))
    if min_map is not None:
        result.must_reach(min_map)


@app.command()
@grouped
def predict(
    run: AnyModel,
    images: Annotated[list[Path], typer.Argument(help="Image files and folders of images.")],
    *,
    out: Annotated[Path | None, typer.Option(help="A .csv or .jsonl file (default: CSV on standard output).")] = None,
    thresholds: ThresholdOptions,
    write: Annotated[
        str | None,
        typer.Option(help="Write tags back: xmp (sidecars of photos), sidecar (.txt files), labelstudio, camtrapdp."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Option of --write, for example -o marker=auto.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what --write would do without doing it.")] = False,
    top: Annotated[int | None, typer.Option(min=1, help="At most this many tags per image.")] = None,
    all_scores: Annotated[bool, typer.Option("--all-scores", help="Write the probability of every category.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the --out file.")] = False,
    as_new: Annotated[
        bool, typer.Option("--as-new", help="Tag the run's own photos as if their known tags were not known.")
    ] = False,
    speed: InferenceOptions,
    machines: ClusterOptions,
    quiet: Quiet = False,
) -> None:
    """Tag images with a trained model. Written as it goes; an unreadable image gets a row that says so.

    Run again with the same --out, it resumes after the last row. Photos that the run was trained on keep their known
    tags, and the others are judged as in `discover` and `review`.
    """
    from fewtags.commands.models import Inference
    from fewtags.commands.predict import choose_writer, write_predictions

    chosen = thresholds.arguments()
    writer = choose_writer(write, named_values(option), out, images, dry_run=dry_run)
    with machines.joined():
        outcome = write_predictions(
            run,
            images,
            out,
            **chosen,
            writer=writer,
            top=top,
            all_scores=all_scores,
            overwrite=overwrite,
            own=not as_new,
            inference=Inference(speed.device, speed.batch_size, speed.workers, speed.runtime),
            quiet=quiet,
        )
    if outcome.failed:
        why = "their rows say why" if out is not None or writer is None else "use --out for the reasons"
        print(f"fewtags: Unreadable images: {outcome.failed}; {why}.", file=sys.stderr)
    if writer is not None:
        print(writer.close())


@app.command()
@grouped
def update(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    photos: Annotated[list[Path], typer.Argument(help="The archive: folders of photos, or photos.")],
    *,
    write: Annotated[
        str | None, typer.Option(help="Write the tags of new photos: xmp (sidecars of photos) or sidecar (.txt files).")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Option of --write, for example -o marker=auto.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A .csv or .jsonl file of the new photos' tags.")] = None,
    thresholds: ThresholdOptions,
    machines: ClusterOptions,
    quiet: Quiet = False,
) -> None:
    """Let a run follow its archive: learn new tags, and tag new and changed photos.

    Photos that are known cost nothing, and without changes the command ends at once: run it every night, with --quiet,
    which prints only problems. Killed at any moment, the next update goes on where it was.
    """
    from fewtags.commands.update import Tagging, paragraph
    from fewtags.commands.update import update as follow

    tagging = Tagging(write, named_values(option), out, thresholds.arguments())
    if option and write is None:
        raise UserError("--option needs --write; say where the tags go, for example --write xmp.")
    with machines.joined():
        done = follow(run, photos, tagging, quiet=quiet)
    for problem in done.problems:
        _warn(problem)
    if not quiet:
        paragraph(done, print)


@app.command()
def cache(
    folder: Annotated[
        Path | None, typer.Argument(help="A run's cache.folder (default: the one in your own cache folder).")
    ] = None,
    empty: Annotated[
        bool, typer.Option("--empty", help="Remove the features; they are computed again if needed.")
    ] = False,
    unused_for: Annotated[
        float | None, typer.Option(min=0, help="With --empty: only what was not used for so many days.")
    ] = None,
    json: Json = False,
) -> None:
    """Show which features of images are kept, and how much disk they take.

    The backbone sees every image once: `train`, `predict`, `discover`, `review` and `update` share what it made of it.
    """
    from fewtags.commands.cache import as_json, open_store, table
    from fewtags.commands.cache import empty as remove

    store = open_store(folder)
    if unused_for is not None and not empty:
        raise UserError("--unused-for says what --empty removes; add --empty.")
    if empty:
        print(remove(store, unused_for))
    elif json:
        print(as_json(store))
    else:
        from rich.console import Console

        for part in table(store):
            Console().print(part, soft_wrap=isinstance(part, str), markup=False, highlight=False)


@app.command()
def untag(
    photos: Annotated[list[Path], typer.Argument(help="Photos, folders of photos, or .xmp files.")],
    reviewed: Annotated[
        Path | None, typer.Option(help="Keep what reviewers of this run have confirmed.", metavar="RUN")
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Also remove the note of keywords that you deleted yourself.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed without doing it.")] = False,
) -> None:
    """Remove the keywords that `fewtags predict --write xmp` wrote, and nothing else.

    A keyword that you have confirmed since stays: one that you moved in your tree of keywords, or confirmed in the
    review of RUN. A sidecar that fewtags made and nobody has changed since is deleted.
    """
    from fewtags.commands.untag import remove_tags

    print(remove_tags(photos, reviewed=reviewed, forget=forget, dry_run=dry_run))


@app.command()
@grouped
def discover(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data: Annotated[
        Path | None, typer.Argument(help="Other images, with or without tags (default: the run's own images).")
    ] = None,
    *,
    moved_to: Moved = None,
    reader: ReaderOptions,
    tag: Annotated[list[str] | None, typer.Option(help="Only this tag; may be repeated.")] = None,
    min_probability: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Minimum probability (default: the model's per-category thresholds)."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many, the most certain ones.")] = 10_000,
    csv: Annotated[Path | None, typer.Option(help="Write the whole list to this CSV file.")] = None,
    jsonl: Annotated[Path | None, typer.Option(help="Write the whole list to this JSON lines file.")] = None,
    device: Device = "auto",
    machines: ClusterOptions,
    quiet: Quiet = False,
) -> None:
    """List tags that seem to be missing, and given tags that look wrong.

    A tag is listed if it is unknown and the model predicts it, most certain first, each with the
    three most similar images that are known to have it. `fewtags discover RUN` searches the run's own images,
    `fewtags discover RUN more-photos/` others. Review the list with `fewtags review RUN`.
    """
    if data is None and reader.given:
        raise UserError("--tags, --format and --option say how to read other DATA; pass it after the run.")
    _say(f"Searching the images of {run} for missing tags.", quiet)
    from rich.console import Console

    from fewtags.commands.discover import discover as discover_tags
    from fewtags.commands.discover import tables, write_csv, write_jsonl

    with machines.joined():
        found = discover_tags(
            run,
            data,
            tags=reader.tags,
            format=reader.format,
            options=reader.options,
            only=tag or [],
            min_probability=min_probability,
            limit=limit,
            device=device,
            quiet=quiet,
            moved_to=moved_to,
        )
    console = Console(highlight=False)
    for part in tables(found, console.width):
        console.print(part, markup=False) if isinstance(part, str) else console.print(part)
    for file, write in ((csv, write_csv), (jsonl, write_jsonl)):
        if file is not None:
            write(found, file)
            print(file)


@app.command()
def apply(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was reviewed.")],
    out: Annotated[
        Path | None, typer.Option(help="The new label file, or folder of text files (default: in RUN/reviewed/).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    write_as: Annotated[
        str, typer.Option("--as", help="'same' for the layout that was read, or jsonl for a JSON lines file.")
    ] = "same",
    decisions: Annotated[
        Path | None,
        typer.Option(help="Write only a CSV of the decisions: image, tag, label, reviewer, time and queue."),
    ] = None,
    states: Annotated[
        str, typer.Option(help="With --decisions: fewtags, or perch for positive, negative, uncertain and provenance.")
    ] = "fewtags",
    force: Annotated[
        bool, typer.Option("--force", help="Continue even if the labels have changed since the run was trained.")
    ] = False,
    moved_to: Moved = None,
) -> None:
    """Write the decisions of a review to a new label file in the same layout; the original is not changed.

    A CSV keeps its columns, its order and every line without a decision; .txt and .xmp files next to images stay
    such files; Pascal VOC, COCO and others become a JSON lines file. The changes are shown first. `fewtags train
    --reviewed RUN` does not need such a file: it reads the decisions from the run.
    """
    from fewtags.commands.apply import plan, show, write_decision_table

    if decisions is not None:
        print(write_decision_table(run, decisions, states))
        return
    planned = plan(run, out, write_as=write_as, force=force, moved_to=moved_to)
    for line in show(planned):
        print(line)
    if dry_run or not planned.changes:
        return
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"Write {planned.place}?")):
        raise UserError("Nothing was written; use --yes to write without confirmation.")
    print(planned.write())


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, the oldest first.")],
    per_category: Annotated[bool, typer.Option("--per-category", help="Compare every category's AP.")] = False,
    json: Json = False,
) -> None:
    """Compare runs on the images all of them were evaluated on, with the same labels: before and after a review.

    Every number is followed by its difference from the first run.
    """
    from rich.console import Console

    from fewtags.progress import working

    with working("Reading the runs"):
        from fewtags.commands.compare import tables
        from fewtags.experiments.comparison import compare_runs

        compared = compare_runs(runs)
    if json:
        print(compared.to_json())
        return
    console = Console(highlight=False)
    for part in tables(compared, per_category):
        console.print(part, markup=False) if isinstance(part, str) else console.print(part)


@app.command()
def explain(
    run: RunOrTagger,
    image: Annotated[Path, typer.Argument(help="An image file.")],
    tag: Annotated[
        list[str] | None, typer.Option(help="Tag to show (default: the predicted ones); may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="PNG file to write (default: IMAGE-explained.png).")] = None,
) -> None:
    """Show the evidence for each predicted tag: the image next to one heat map per tag."""
    from fewtags.commands.explain import explain as explain_image

    file, tags = explain_image(run, image, out, tag)
    for name, probability in tags.items():
        print(f"{name}  {probability:.3f}")
    print(file)


@app.command()
def export(
    run: RunOrTagger,
    to: Annotated[str, typer.Option(help="onnx, openvino (extra: openvino), or timm.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="File to write (default: RUN/model.onnx).")] = None,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Quantise: smaller and faster on CPUs; the accuracy cost is measured."),
    ] = False,
    images: Annotated[
        list[Path] | None,
        typer.Option(help="Images to compare with torch on (default: the run's own); may be repeated."),
    ] = None,
    layout: Annotated[
        bool,
        typer.Option("--layout", help="A folder with model.onnx and the files that imgutils (booru tools) reads."),
    ] = False,
) -> None:
    """Write the model as one file to deploy: names, thresholds and preprocessing inside, probabilities out.

    The file is run on images after it is written and compared with torch. `fewtags predict`, `evaluate` and `serve`
    take it without torch (extra: onnx).
    """
    from fewtags.commands.export import export as export_run

    file, sentences = export_run(run, to=to, out=out, int8=int8, images=images or [], layout=layout)
    print("\n".join(sentences))
    print(file)


@app.command()
def search(
    run: AnyRun,
    like: Annotated[
        list[Path] | None, typer.Option(help="An image file that shows what is looked for; may be repeated.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="A word or phrase, where the run's backbone knows words.")] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="List so many.")] = 20,
    csv: Annotated[Path | None, typer.Option(help="Also write them to this CSV file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Find images of a run by example or by a phrase.

    The first step to a tag that nobody has given yet: `fewtags review RUN` searches the same way, and its "+ Tag" makes
    a tag of what was found.
    """
    from fewtags.commands.search import search as find

    found = find(run, like=like or [], text=text, number=number, quiet=quiet)
    print("\n".join(found.lines()))
    if csv is not None:
        found.write(csv)
        print(csv)


@app.command()
def audit(
    run: AnyRun,
    questions: Annotated[
        int | None, typer.Option(min=1, help="How many to ask (default: 50, or as many as --until needs).")
    ] = None,
    until: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Stop when the interval of the share of known tags is this narrow: 0.15."),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Ask on the review page, with pictures (extra: serve).")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the questions to this CSV file instead of asking them.")
    ] = None,
    answers: Annotated[Path | None, typer.Option(help="Read answers from such a file, filled in.")] = None,
    reviewer: Annotated[str | None, typer.Option(help="Name stored with every answer (default: your login).")] = None,
    quiet: Quiet = False,
) -> None:
    """Answer a few questions, and the numbers about missing tags become honest.

    How many tags are missing depends on who left them out, and why, which labels alone do not tell. The questions are a
    random sample with known probabilities, drawn so that each answer says much. Each is saved immediately; started
    again, it goes on where it was. At the end stand an estimate by the model, which learns from the answers,
    and one by the answers alone, which is right whatever the model thinks.
    """
    if open_page:
        from fewtags.commands.review import review as serve_review

        serve_review(run, reviewer=reviewer, quiet=quiet, at="&queue=audit")
        return
    _say(f"Opening {run} for an audit.", quiet)
    from fewtags.commands.audit import audit as ask_questions

    lines = ask_questions(
        run, questions=questions, until=until, csv_file=csv, answers=answers, reviewer=reviewer, quiet=quiet
    )
    for line in lines:
        print(line, flush=True)


@app.command()
def review(
    run: AnyRun,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port (default: the first free one, starting at 8321).")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to bind; anything but the default lets other machines connect.")
    ] = "127.0.0.1",
    reviewer: Annotated[str | None, typer.Option(help="Name stored with every decision (default: your login).")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, but accept no decisions.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    quiet: Quiet = False,
) -> None:
    """Review the tags a model finds, in the browser; the ranking learns from every decision (extra: serve).

    Prints the page's address, which has a token in it, and serves it until Ctrl-C. Decisions are kept in
    RUN/review/decisions.sqlite, where `fewtags apply RUN` finds them.
    """
    from fewtags.commands.review import review as serve_review

    serve_review(run, host=host, port=port, reviewer=reviewer, read_only=read_only, browser=not no_browser, quiet=quiet)


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="Folder of a run or saved tagger, or a file of `fewtags export`.")],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port.")] = 8000,
    batch_size: Annotated[int, typer.Option(min=1, help="Largest batch.")] = 16,
    queue: Annotated[int, typer.Option(min=1, help="Images that may wait; above that, requests get 429.")] = 96,
    max_bytes: Annotated[int, typer.Option(min=1, help="Largest request body in bytes.")] = 20 * 1024**2,
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest image in pixels.")] = 50_000_000,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds before a request times out.")] = 30.0,
    label_studio: Annotated[
        bool, typer.Option("--label-studio", help="Be an ML backend of Label Studio; learn from its annotations.")
    ] = False,
    images: Annotated[Path | None, typer.Option(help="With --label-studio: the folder with the tasks' images.")] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="With --label-studio: a tag that was not chosen is absent.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Serve tags over HTTP for images POSTed to /v1/tags (extra: serve).

    `curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/v1/tags`, or several as a form:
    `curl -F images=@a.jpg -F images=@b.jpg ...`. The API to try in a browser: /docs. Health: /healthz,
    /readyz; Prometheus: /metrics. With FEWTAGS_API_KEY in the environment clients must send it as `X-API-Key`. Ctrl-C
    and SIGTERM finish the requests in flight, then stop.
    """
    from fewtags.commands.serve import key_from_environment, serve_label_studio
    from fewtags.commands.serve import serve as serve_model
    from fewtags.errors import MissingExtra

    where: Any = {"host": host, "port": port, "device": device, "api_key": key_from_environment()}
    if label_studio:
        serve_label_studio(model, images=images, complete=complete, **where)
        return
    if images is not None or complete:
        raise UserError("--images and --complete go with --label-studio.")
    try:
        from fewtags.serve.app import Limits
    except ImportError:
        raise MissingExtra("fewtags serve", "serve") from None
    limits = Limits(bytes=max_bytes, pixels=max_pixels, seconds=timeout, queue=queue, batch=batch_size)
    serve_model(model, limits=limits, **where)


@app.command()
@grouped
def bench(
    grid: Annotated[Path, typer.Argument(help="YAML file with datasets, methods, proportions and seeds.")],
    settings: Annotated[list[str] | None, typer.Argument(help="Settings of every run, as group.name=value.")] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="Folder of all its runs (default: runs/GRID).")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs in parallel; they share the cores.")] = 1,
    only: Annotated[
        list[str] | None, typer.Option(help="Only runs with this in their name (caldnr/known-10); may be repeated.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="List the runs, say how many are left and how long they take, and stop.")
    ] = False,
    machines: ClusterOptions,
    quiet: Quiet = False,
) -> None:
    """Run a whole comparison and write its tables. Run it again to resume: finished runs are skipped.

    If the grid now asks for more epochs, finished runs are trained further. The cosine schedule does not allow this:
    it has fixed the learning rate of every epoch. Leaves runs.csv and tables.md, .csv and .tex in its folder, which
    `fewtags report` turns into a page. Exits with code 1 when a run failed; the other runs still finish.
    """
    from fewtags.experiments.grid import named_like, read_grid

    runs = read_grid(grid, settings or [])
    wanted = named_like(runs, only or [])
    from fewtags.experiments.bench import Bench, outlook

    if plan:
        print("\n".join(run.name for run in wanted))
        print(outlook(wanted, out or Path("runs") / grid.stem, workers), file=sys.stderr)
        return
    from fewtags.experiments.executors import LocalExecutor
    from fewtags.experiments.ray_executor import RayExecutor

    with machines.joined() as cluster:
        executor = LocalExecutor(workers) if cluster is None else RayExecutor(cluster)
        work = Bench(runs, out or Path("runs") / grid.stem, executor, wanted=wanted, quiet=quiet)
        failed = work.run()
    for run in failed:
        print(f"fewtags: {run} failed; see {work.files(run).log}", file=sys.stderr)
    print(work.runs_csv)
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or a folder of runs, as written by bench.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "fewtags report",
    moved_to: Moved = None,
    tables: Annotated[
        Path | None, typer.Option(help="Folder for the tables as Markdown, CSV and LaTeX (default: not written).")
    ] = None,
) -> None:
    """Write one HTML page about runs: pictures, tags found, tables, curves, categories, thresholds."""
    from fewtags.experiments.report import write_report
    from fewtags.experiments.runs import find_runs, tidy_rows
    from fewtags.experiments.tables import write_tables

    if tables is not None:
        tables.mkdir(parents=True, exist_ok=True)
        write_tables(tidy_rows(find_runs(runs)), tables)
    print(write_report(runs, out, title, moved_to, warn=_warn))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method: settings, profiles, how to cite it.")] = None,
) -> None:
    """List the methods, or explain one."""
    from fewtags.commands.info import describe_method, list_table

    print(list_table() if name is None else describe_method(name))


@app.command()
def doctor() -> None:
    """Show versions, devices and extras: what to paste into a bug report."""
    from fewtags.commands.info import describe_installation

    print(describe_installation())
