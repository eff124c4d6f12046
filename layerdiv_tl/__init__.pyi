# What `import layerdiv_tl` offers, each name from its own module: read by type checkers, editors and `lazy_loader`.

from . import depth as depth
from . import zoo as zoo
from .attribution.compare import compare as compare
from .attribution.continuation import continuation as continuation
from .attribution.contributions import contributions as contributions
from .attribution.contributions import logit_difference as logit_difference
from .attribution.head_scores import head_scores as head_scores
from .attribution.profile import profile as profile
from .attribution.source_tokens import source_tokens as source_tokens
from .components import Component as Component
from .depth.total_effects import effects as effects
from .ensemble.decompose import decompose as decompose
from .ensemble.information import information as information
from .errors import InputError as InputError
from .model.attention import attention_patterns as attention_patterns
from .model.dictionary import dictionary as dictionary
from .model.groups import groups as groups
from .model.groups import key_value_groups as key_value_groups
from .model.load import load_model as load_model
from .model.predictions import top_tokens as top_tokens
from .results import load as load
from .studies.grid import Grid as Grid
from .tasks.task import Task as Task
from .tasks.task import task as task
from .views.explorer import explore as explore
from .views.tokens import attention_heads as attention_heads
from .views.tokens import colored_tokens as colored_tokens
from .views.tokens import promoted_tokens as promoted_tokens

__version__: str
