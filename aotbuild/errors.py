"""The exceptions that aotbuild raises; what each command prints of them is `cli`'s concern.

    AotbuildError
    ├── UsageError                  the call was wrong (exit code 2)
    │   ├── RecipeError             a recipe that doesn't exist or doesn't hold together
    │   ├── TargetError             a GPU or CPU that isn't known, or can't do what was asked
    │   └── SourceError             a source that `load` can't read artifacts from
    ├── BuildError                  the build failed (exit code 1)
    │   ├── ToolchainError          no C++ compiler, or a torch that can't build for the target
    │   ├── ExportError             the model can't be exported; names the line that broke
    │   └── VerificationError       the compiled component isn't as close to eager as it must be
    ├── ArtifactError               what lies on disk isn't what its manifest says
    │   ├── ManifestError           a manifest that doesn't read, or altered
    │   │   └── FormatError         one that an older or newer aotbuild wrote
    │   └── IntegrityError          a file whose digest or layout differs
    ├── StoreError                  the store can't be read or written
    ├── HubError                    the Hub can't be reached, or fails
    └── LoadError                   artifacts that can't serve this pipeline
        ├── NoArtifactError         a component got none, with each rejection and its reason
        ├── SignatureMismatch       a call that no artifact covers, under `fallback="error"`
        ├── CompileError            torch.compile fails on what a JIT-cache bundle is for
        └── ReleasedError           weights were freed, or the pipeline restored: no way back

Each message is one paragraph: what was found, what was expected, what to type next.
"""


class AotbuildError(Exception):
    """Anything that aotbuild itself refuses or fails at."""


class UsageError(AotbuildError):
    """The call was wrong: an argument, a name, a path."""


class RecipeError(UsageError):
    """A recipe that doesn't exist, doesn't read, or asks for the impossible."""


class TargetError(UsageError):
    """A target that isn't known, or can't do what was asked of it."""


class SourceError(UsageError):
    """A source that artifacts can't be loaded from."""


class BuildError(AotbuildError):
    """A build that failed."""


class ToolchainError(BuildError):
    """A compiler, header or torch build that the target needs is missing."""


class ExportError(BuildError):
    """A module that torch.export can't trace."""


class VerificationError(BuildError):
    """A compiled component that is further from the reference than its bound allows."""


class ArtifactError(AotbuildError):
    """An artifact on disk that isn't what it says it is."""


class ManifestError(ArtifactError):
    """A manifest that is malformed, or altered."""


class FormatError(ManifestError):
    """A manifest of a format version that this aotbuild doesn't read."""


class IntegrityError(ArtifactError):
    """A file of an artifact whose digest or layout isn't the recorded one."""


class StoreError(AotbuildError):
    """A store that can't be read or written."""


class HubError(AotbuildError):
    """A Hub that can't be reached, or that fails whatever is tried."""


class LoadError(AotbuildError):
    """Artifacts that can't serve this pipeline, or this call."""


class NoArtifactError(LoadError):
    """A requested component for which every artifact was turned down."""


class SignatureMismatch(LoadError):  # noqa: N818 (the public name)
    """A call that no artifact covers."""


class CompileError(LoadError):
    """A module that torch.compile, or its compiler, fails on."""


class ReleasedError(LoadError):
    """What was asked for needs weights or methods that are gone."""
