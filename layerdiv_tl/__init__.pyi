# What `import layerdiv_tl` offers, each name from its own module: read by type checkers, editors and `lazy_loader`.

from . import depth as depth
from . import zoo as zoo
from .attribution.compare import compare as compare
from .attribution.comparison import Comparison as Comparison
from .attribution.contrasts import logit_difference as logit_difference
from .attribution.contribution_results import Contributions as Contributions
from .attribution.contributions import contributions as contributions
from .attribution.logit_difference import LogitDifference as LogitDifference
from .attribution.profile import corpus_profile as corpus_profile
from .attribution.profile import profile as profile
from .attribution.profile_base import CorpusProfile as CorpusProfile
from .attribution.profile_base import Profile as Profile
from .attribution.source_results import SourceTokens as SourceTokens
from .attribution.source_tokens import source_tokens as source_tokens
from .attribution.text_comparison import TextComparison as TextComparison
from .components import Component as Component
from .depth.effect_results import Effects as Effects
from .depth.effects import effects as effects
from .ensemble.decomposition import Decomposition as Decomposition
from .ensemble.decomposition import decompose as decompose
from .ensemble.information import Information as Information
from .ensemble.information import information as information
from .errors import InputError as InputError
from .model.attention import AttentionPatterns as AttentionPatterns
from .model.attention import attention_patterns as attention_patterns
from .model.load import Model as Model
from .model.load import load_model as load_model
from .model.predictions import top_tokens as top_tokens
from .replication.zoo_experiment import run_zoo as run_zoo
from .studies.depth_runner import run_depth as run_depth
from .studies.depth_study import DepthStudy as DepthStudy
from .studies.plan import StudyPlan as StudyPlan
from .studies.plan import plan_study as plan_study
from .studies.runner import run_study as run_study
from .studies.study import Study as Study
from .tasks.task import Task as Task
from .tasks.task import task as task
from .views.explorer import Explorer as Explorer
from .views.explorer import explore as explore
from .views.token_views import attention_heads as attention_heads
from .views.token_views import colored_tokens as colored_tokens
from .views.token_views import promoted_tokens as promoted_tokens

__version__: str
