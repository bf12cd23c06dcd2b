"""Programs of others, from Maven Central: folders of jars, fetched once by the resolver that Spark has."""

import subprocess
from pathlib import Path

import pyspark

FETCHED = Path(__file__).parents[1] / ".pytest_cache"


def jars(program: str, *modules: str, alone: bool = False) -> Path:
    """The folder with the jars of modules (`group:name:version`), and unless `alone` of all that they need."""
    folder, how = FETCHED / program, ["-notransitive"] if alone else []
    if not (folder / "ready").exists():
        ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
        pattern = folder / "[artifact]-[revision](-[classifier]).[ext]"
        for module in modules:
            words = ["-dependency", *module.split(":"), "-retrieve", pattern, "-types", "jar", "bundle"]
            subprocess.run(
                ["java", "-jar", ivy, "-confs", "default", *how, *words], check=True, capture_output=True
            )
        (folder / "ready").touch()
    return folder
