"""The experiments of the sources, which `fedveil reproduce` repeats. They are not in the wheel."""

#: Each class by its module here, imported on use.
EXPERIMENTS = {
    "signds-table": "signds_table:SignDSTable",
    "signds-lenet": "signds_lenet:SignDSLeNet",
    "ldp-convergence": "ldp_convergence:LDPConvergence",
    "ldp-cells": "ldp_cells:LDPCells",
    "ldp-epsilon": "ldp_epsilon:LDPEpsilon",
    "ldp-clients": "ldp_clients:LDPClients",
    "ldp-noniid": "ldp_noniid:LDPNonIID",
    "ldp-adaptive": "ldp_adaptive:LDPAdaptive",
    "embedding-dp": "protected_features:ProtectedFeatures",
    "pangu-embedding-dp": "protected_language:ProtectedLanguage",
    "secagg-cost": "secagg_cost:SecaggCost",
    "accuracy-epsilon": "accuracy_epsilon:AccuracyEpsilon",
}
