"""What `import layerdiv_tl` offers, each name from its own module: read by type checkers, editors and `lazy_loader`."""

from . import depth as depth
from . import zoo as zoo
from .components import Component as Component
from .ensemble.decomposition import Decomposition as Decomposition
from .ensemble.decomposition import decompose as decompose
from .ensemble.information import Information as Information
from .ensemble.information import information as information
from .ensemble.profile import CorpusProfile as CorpusProfile
from .ensemble.profile import Profile as Profile
from .errors import InputError as InputError
from .stream.attention import AttentionPatterns as AttentionPatterns
from .stream.attention import attention_patterns as attention_patterns
from .stream.contributions import Contributions as Contributions
from .stream.contributions import contributions as contributions
from .stream.loading import Model as Model
from .stream.loading import load_model as load_model
from .stream.profile import corpus_profile as corpus_profile
from .stream.profile import profile as profile
from .studies.depth import DepthStudy as DepthStudy
from .studies.depth import run_depth as run_depth
from .studies.run import run_study as run_study
from .studies.study import Study as Study
from .studies.zoo import run_zoo as run_zoo
from .tasks.task import Task as Task
from .tasks.task import task as task
from .views.explorer import Explorer as Explorer
from .views.explorer import explore as explore
from .views.tokens import attention_heads as attention_heads
from .views.tokens import coloured_tokens as coloured_tokens
from .views.tokens import promoted_tokens as promoted_tokens

__version__: str
