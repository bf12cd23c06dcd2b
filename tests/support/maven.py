"""Other programs from Maven Central: folders of jars, fetched once with Spark's resolver."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

FETCHED = Path(__file__).parents[2] / ".pytest_cache"


def jars(program: str, *modules: str, alone: bool = False) -> Path:
    """The folder with the jars of modules (`group:name:version`), and unless `alone`, of their dependencies."""
    folder, how = FETCHED / program, ["-notransitive"] if alone else []
    if not folder.exists():
        FETCHED.mkdir(exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=program, dir=FETCHED))
        ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
        pattern = part / "[artifact]-[revision](-[classifier]).[ext]"
        for module in modules:
            words = ["-dependency", *module.split(":"), "-retrieve", pattern, "-types", "jar", "bundle"]
            subprocess.run(
                ["java", "-jar", ivy, "-confs", "default", *how, *words], check=True, capture_output=True
            )
        try:
            part.rename(folder)  # atomic, because several processes of tests may fetch it
        except OSError:
            shutil.rmtree(part)
    return folder
