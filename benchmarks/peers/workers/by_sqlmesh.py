"""A SQLMesh model of kind SCD_TYPE_2_BY_COLUMN over all columns, deleted records closed.

Each load is a day later, because a model runs once for each interval. The first load plans a model; later
loads run it.
"""

from datetime import UTC, datetime, timedelta

from line import FOLDER, run
from sqlmesh import Context
from sqlmesh.core.config import (
    Config,
    DuckDBConnectionConfig,
    GatewayConfig,
    ModelDefaultsConfig,
    SparkConnectionConfig,
)

folder = FOLDER / "sqlmesh"
spark = SparkConnectionConfig(catalog="backstory", concurrent_tasks=1, register_comments=False)
state = DuckDBConnectionConfig(database=str(folder / "state.db"))
config = Config(
    gateways={"": GatewayConfig(connection=spark, state_connection=state)},
    model_defaults=ModelDefaultsConfig(dialect="spark", start="2026-01-01"),
    disable_anonymized_analytics=True,
)
context = Context(paths=str(folder), config=config)


def load(number: int) -> None:
    """Plan the model the first time; afterwards run it."""
    model, planned, day = f"mesh.customer_{number}", folder / f"planned_{number}", folder / "day"
    if not planned.exists():
        context.plan(auto_apply=True, no_prompts=True, select_models=[model])
        planned.touch()
        return
    later = int(day.read_text()) + 1 if day.exists() else 1
    day.write_text(str(later))
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    when = noon + timedelta(days=later)
    status = context.run(execution_time=when, end=when, ignore_cron=True, select_models=[model])
    if not status.is_success:  # a run with nothing to do is not a success either
        raise RuntimeError(status)


run(load)
