"""A dbt snapshot: strategy check over all columns, deleted records closed."""

from dbt.cli.main import dbtRunner
from line import FOLDER, run

runner = dbtRunner()


def load(number: int) -> None:
    """Run `dbt snapshot --select customer_N`."""
    folder = str(FOLDER / "dbt")
    places = ["--project-dir", folder, "--profiles-dir", folder]
    done = runner.invoke(["--quiet", "snapshot", "--select", f"customer_{number}", *places])
    if not done.success:
        told = [each.message for each in done.result or []] or done.exception
        raise RuntimeError(told)


run(load)
