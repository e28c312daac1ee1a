"""The place that the apps of earlier versions import; they are told to be written anew."""

from fedveil.errors import DeploymentError

raise DeploymentError(
    "this app was written by an earlier version of fedveil: `fedveil deploy` of its job.yaml "
    "writes it anew, into another folder"
)
