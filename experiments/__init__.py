"""The experiments of the sources, which `fedveil reproduce` repeats. They are not in the wheel."""

#: An experiment's name -> its module in this package and its class, which are imported on use.
EXPERIMENTS = {
    "signds-table": "signds_table:SignDSTable",
    "signds-lenet": "signds_lenet:SignDSLeNet",
    "signds-lenet-seeds": "signds_lenet:SignDSLeNetSeeds",
    "signds-keys": "signds_keys:SignDSKeys",
    "ldp-convergence": "ldp_figures:Convergence",
    "ldp-cells": "ldp_figures:Cells",
    "ldp-epsilon": "ldp_epsilon:Epsilons",
    "ldp-clients": "ldp_figures:Clients",
    "ldp-noniid": "ldp_figures:NonIID",
    "ldp-adaptive": "ldp_adaptive:Adaptive",
    "ldp-rounds": "ldp_rounds:LeakageByRound",
    "ldp-aggregation": "ldp_aggregation:Aggregation",
    "embedding-dp": "protected_features:ProtectedFeatures",
    "pangu-embedding-dp": "protected_language:ProtectedLanguage",
    "dp-encrypt-keys": "dp_encrypt_keys:DPEncryptKeys",
    "dp-encrypt-budget": "dp_encrypt_budget:DPEncryptBudget",
    "secagg-cost": "secagg_cost:SecaggCost",
    "accuracy-epsilon": "accuracy_epsilon:AccuracyEpsilon",
}
