"""``reconrisk tradeoff``: utility and leakage of defenses, measured by training and attacking."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconrisk.cli.inputs import INTERRUPTED, check_folder, check_seed, network
from reconrisk.cli.options import DATA_HELP, LABEL_HELP, MODEL_HELP, SPLIT_HELP, WEIGHTS_HELP, option
from reconrisk.core.validation import invalid_input

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.data.dataset import Dataset
    from reconrisk.studies.tradeoff.result import TradeoffResult

_WHAT = "Model, data and defenses"
_TRAINING = "Training"
_ATTACKED = "Attacks"
_OUT = "Output"
_MOST_PAIRS = 2
_FORM = "to be name:strengths such as optimal_noise:0.01,0.1 or 'clip_and_noise(clip_norm=1):0.1,1'"


def tradeoff(
    model: Annotated[str, option(_WHAT, MODEL_HELP)],
    data: Annotated[str, option(_WHAT, DATA_HELP)],
    defense: Annotated[
        list[str],
        option(
            _WHAT,
            "Family of defenses and its strengths: 'optimal_noise:0.01,0.1', 'clip_and_noise(clip_norm=1):0.1,1', or "
            "with a named setting, 'optimal_noise:noise_norm=0.1,1'. Repeat for several.",
        ),
    ],
    weights: Annotated[Path | None, option(_WHAT, WEIGHTS_HELP)] = None,
    split: Annotated[str | None, option(_WHAT, SPLIT_HELP)] = None,
    label: Annotated[str | None, option(_WHAT, LABEL_HELP)] = None,
    records: Annotated[int | None, option(_WHAT, "Number of records drawn at random. Default: all.")] = None,
    public: Annotated[
        int, option(_WHAT, "Number of records treated as public. Optimal defenses are fitted to them.")
    ] = 64,
    steps: Annotated[int | None, option(_TRAINING, "Training steps. Default: 100.")] = None,
    epochs: Annotated[int | None, option(_TRAINING, "Passes over the records, instead of --steps.")] = None,
    clients: Annotated[int, option(_TRAINING, "Clients whose defended gradients are averaged.")] = 1,
    batch_size: Annotated[int, option(_TRAINING, "Records per client gradient in training.")] = 16,
    optimizer: Annotated[str, option(_TRAINING, "sgd or adam.")] = "sgd",
    learning_rate: Annotated[float, option(_TRAINING, "Learning rate.")] = 0.1,
    attacks: Annotated[
        list[str] | None, option(_ATTACKED, "quick, thorough, or an attack such as gauss_newton. Repeat for several.")
    ] = None,
    trials: Annotated[int, option(_ATTACKED, "Attacked gradients per seed.")] = 4,
    attacked_batch_size: Annotated[int, option(_ATTACKED, "Records per attacked gradient.")] = 1,
    attack_trained: Annotated[
        bool, option(_ATTACKED, "Attack gradients of the trained model, not of the initial one.", "--attack-trained")
    ] = False,
    knows: Annotated[
        list[str] | None, option(_ATTACKED, "Knowledge of both adversaries, such as labels. Repeat for several.")
    ] = None,
    repeat: Annotated[int, option(_ATTACKED, "Number of seeds; each repeats split, training and attacks.")] = 3,
    seed: Annotated[int, option(_ATTACKED, "First seed.")] = 0,
    utility: Annotated[
        str | None,
        option(
            _OUT,
            "test_accuracy, training_loss, test_loss, utility_1 or utility_2. Default: accuracy of a classifier, "
            "otherwise test loss.",
        ),
    ] = None,
    leakage: Annotated[str, option(_OUT, "mse, psnr, fisher_trace or mse_bound.")] = "mse",
    out: Annotated[Path, option(_OUT, "Output folder for table, picture and finished runs.")] = Path("tradeoff"),
    as_json: Annotated[bool, option(_OUT, "Print the result as JSON instead of text.", "--json")] = False,
) -> None:
    """Train with each defense and strength, attack the updates, and compare leakage with utility."""
    check_folder(out)
    check_seed(seed)
    from reconrisk.attacks.registry import PORTFOLIOS
    from reconrisk.core.threat import Sees, ThreatModel
    from reconrisk.studies.common.defended_training import TrainingRecipe
    from reconrisk.studies.common.subjects.subject import UpdateRecipe
    from reconrisk.studies.tradeoff.tradeoff import TradeoffOptions
    from reconrisk.studies.tradeoff.tradeoff import tradeoff as measure

    dataset, known = _data(data, split=split, label=label, records=records, public=public, seed=seed)
    attacks = attacks or ["quick"]
    threat = ThreatModel(Sees.ONE_UPDATE, knows=frozenset(knows or ()))  # type: ignore[arg-type]  # ThreatModel converts names
    options = TradeoffOptions(
        seed=seed,
        public=known,
        show_plan=lambda text: typer.echo(text, err=True),
        repeat=repeat,
        attack_trained=attack_trained,
    )
    result = measure(
        _build_model(model, dataset, weights, seed),
        dataset,
        read_families(defense),
        attacks[0] if len(attacks) == 1 and attacks[0] in PORTFOLIOS else attacks,
        threat=threat,
        training=TrainingRecipe(steps, epochs, clients, batch_size, optimizer, learning_rate),
        update=UpdateRecipe(batch_size=attacked_batch_size),
        trials=trials,
        utility=utility,
        leakage=leakage,
        store=out / "runs",
        options=options,
    )
    _print(result, out, as_json=as_json)
    if not result.is_complete:
        raise typer.Exit(INTERRUPTED)


def read_families(stated: Sequence[str]) -> dict[str, dict[float, Defense]]:
    """Parse families of defenses.

    Args:
        stated: Texts such as ``optimal_noise:0.01,0.1``.

    Returns:
        For each family, the configured defense of each strength.

    Raises:
        InvalidInput: If a text has another form, or names an unknown defense.

    >>> read_families(["gaussian_noise:0.1,1"])["gaussian_noise"][1.0]
    NoisyRelease(std=1.0, clip_norm=None)
    """
    from reconrisk.core.registry import Choice
    from reconrisk.defenses.registry import DEFENSES, defense_by_name

    found: dict[str, dict[float, Defense]] = {}
    for text in stated:
        parts = re.fullmatch(r"\s*(?P<family>\w+(?:\(.*\))?)\s*:\s*(?:(?P<setting>\w+)=)?(?P<numbers>[^=:]+)", text)
        if parts is None:
            raise invalid_input("defense", text, _FORM)
        choice, family = Choice.read("defense", parts["family"]), parts["family"].strip()
        setting = parts["setting"] or DEFENSES[choice.name].strength
        if not setting:
            raise invalid_input(
                "defense", choice.name, "to have a strength", "Name the setting, as in name:setting=0.1,1."
            )
        if family in found:
            raise invalid_input("defense", family, "to appear once", "List all its strengths together.")
        try:
            strengths = [float(each) for each in parts["numbers"].split(",")]
        except ValueError as error:
            raise invalid_input("defense", text, _FORM, "Write the strengths as numbers.") from error
        found[family] = {
            strength: defense_by_name(choice.name, **{**dict(choice.settings), setting: strength})
            for strength in strengths
        }
    return found


def _data(
    name: str, *, split: str | None, label: str | None, records: int | None, public: int, seed: int
) -> tuple[Dataset, Dataset | None]:
    """Load the records and split off the public ones."""
    import torch  # takes seconds to import

    from reconrisk.core.validation import check_whole
    from reconrisk.data import load_dataset

    dataset = load_dataset(name, split=split, **({} if label is None else {"label": label}))
    rows = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    apart = check_whole("public", public, minimum=0)
    if apart >= len(dataset):
        raise invalid_input("public", public, f"< {len(dataset)}, the number of records of {dataset.name}")
    left = rows[apart:] if records is None else rows[apart : apart + check_whole("records", records)]
    return dataset.subset(left), dataset.subset(rows[:apart]) if apart else None


def _build_model(model: str, dataset: Dataset, weights: Path | None, seed: int) -> Any:
    import torch

    from reconrisk.models.weights import load_weights

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = network(model, shape=dataset.shape, classes=dataset.class_count).eval()
    return built if weights is None else load_weights(built, weights).eval()


def _print(result: TradeoffResult, out: Path, *, as_json: bool) -> None:
    from reconrisk.studies.tradeoff.result import ATTACKERS

    formats = {"json": ".json", "picture": ".png", "page": ".html"}
    written = {what: result.save(out / f"tradeoff{suffix}") for what, suffix in formats.items()}
    if as_json:
        typer.echo(result.to_json())
        return
    typer.echo(f"{result}\n")
    pairs = [(one, other) for one in result.families for other in result.families if one != other]
    for attacker in ATTACKERS if len(pairs) <= _MOST_PAIRS else ():  # the page has them all
        for one, other in pairs:
            typer.echo(str(result.dominates(one, other, attacker=attacker)))
    for what, path in written.items():
        typer.echo(f"{what:<9} {path.resolve()}")
