"""The experiments of the sources, which `fedveil reproduce` repeats. They are not in the wheel."""

#: Each class by its module here, imported on use.
EXPERIMENTS = {
    "signds-table": "signds_table:SignDSTable",
    "signds-lenet": "signds_lenet:SignDSLeNet",
    "dp-encrypt-clients": "noise_by_clients:NoiseByClients",
    "ldp-convergence": "ldp_figures:Convergence",
    "ldp-cells": "ldp_figures:Cells",
    "ldp-epsilon": "ldp_figures:Epsilons",
    "ldp-clients": "ldp_figures:Clients",
    "ldp-noniid": "ldp_figures:NonIID",
    "ldp-adaptive": "ldp_figures:Adaptive",
    "embedding-dp": "protected_features:ProtectedFeatures",
    "pangu-embedding-dp": "protected_language:ProtectedLanguage",
    "secagg-cost": "secagg_cost:SecaggCost",
    "accuracy-epsilon": "accuracy_epsilon:AccuracyEpsilon",
}
