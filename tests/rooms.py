"""Lists the room of the package that each file of `tests/unit` tests, for `make test ROOM=plan`.

A test file that is not listed here runs for every room.
"""

from __future__ import annotations

from collections.abc import Mapping

ROOMS: Mapping[str, tuple[str, ...]] = {
    "_native": ("native_functions", "runtime_examples", "runtime_library", "threads"),
    "artifact": (
        "artifact", "artifact_validation", "counted_artifact", "fuzz_oracle", "signature",
        "string_tensors",
    ),
    "benchmarks": (
        "explain_verdicts", "figures", "gpu_table", "gpu_visit", "harness", "learned_benchmark",
        "operator_profile",
        "papers", "papers_hios_opara_top", "papers_rankings", "papers_simulated",
        "ranges_benchmark",
        "scheduler_benchmarks", "top_benchmark", "torch_gpu", "torch_twin", "two_cores",
        "zoo_networks", "zoo_tables",
    ),
    "checking": ("checking",),
    "cli": (
        "cli", "cli_models", "cli_tune", "cli_verbs", "interrupted", "options_once", "places",
    ),
    "compiler": (
        "batch_sizes", "carried_kernels", "compile_in_threads", "checked_libraries", "compile",
        "cuda_compile", "cuda_libraries", "gpu_prices", "inter_op_schedule", "ios_merge",
        "joined_names", "kept", "kernel_choice", "kernel_tuning", "merge_check", "merge_cuda",
        "new_processes", "pair_attacks", "pair_proofs", "pair_ranges", "precision", "program_check",
        "range_limits", "row_kernels", "row_ranges", "sequence_first", "sequence_ranges",
        "settled_kernels", "several_shapes", "size_values", "sizes_hidden", "sizes_inside",
        "provider_choice", "small_ranges",
        "time_budget", "time_budget_options", "torch_ranges", "two_labels", "winograd",
        "without_fallback",
    ),
    "contrib": ("relay",),
    "execution": (
        "conformance", "end_of_process", "fork", "graph_module", "memory_of_runs", "native_model",
        "packed_weights", "remote", "run_counts", "scratch", "segments", "shared_buffers",
    ),
    "explaining": ("compare", "explain", "explain_operator", "explain_ranges"),
    "frontend": (
        "as_images", "assigned_boxes", "bfloat16", "bfloat16_programs", "class_tables", "classical",
        "cumulative_sum", "equal_bools", "fitting_inputs", "frontend", "functions", "gather_nd",
        "grouped_attention", "indices", "linear_attention", "microsoft", "microsoft_attention",
        "microsoft_small", "ngrams",
        "old_operators", "rare_models", "sequences", "small_floats", "spectra", "strings",
        "support_vectors", "trees", "unique",
    ),
    "kernels": (
        "bfloat16_schedule", "c_library", "cpu_schedule", "cpu_schedule_loops", "cubin",
        "cuda_kernels", "cuda_schedule", "dot_nest", "exact_floats", "kernel_check", "kernels",
        "large_expressions", "many_tensors", "numpy_kernel", "pieces", "row_sums",
        "safe_remainders", "scopes", "transposes", "vector_math",
    ),
    "latency": ("block_latency", "interference", "latency", "learned_latency", "repeats"),
    "lowering": (
        "activations_before_views",
        "activations", "attention", "causal_convolutions", "common_subexpressions",
        "constant_kernels",
        "convs_of_small_images", "cut_convs",
        "extract", "float16", "fold_arrays",
        "independent_rows", "legalize_once", "library_calls",
        "lift_workspaces", "lower", "lrn_pattern", "masked_attacks", "masked_positions",
        "masked_steps",
        "merge_convs", "merge_products",
        "parts_in_place", "parts_of_products", "query_masks",
        "quantised_kernels", "row_products", "schedule_units", "selected_rows", "split_operators",
        "summed_convs",
        "taps_as_channels",
        "transposed_convs",
    ),
    "machine": ("cpu_features", "gpu_traits", "multiprocessors", "onednn", "onednn_process"),
    "measure": ("active_search", "farm", "few_measured", "latency_store", "measured_latency"),
    "models": ("light", "models", "weights_in_place"),
    "ownership": ("ownership",),
    "plan": ("device_placement", "opara", "plan", "planning", "stream_priority"),
    "program": ("concat_in_place", "graph", "kernel_traits", "memory_order", "storage"),
    "relay": ("relay",),
    "scheduling": (
        "auto", "block_simulation", "every_scheduler", "given_blocks", "gpg", "gpu_schedules",
        "ios_bounds", "least_time",
        "ios_large", "ios_stage_costs", "lios_variants", "local_search", "multi_gpu", "nimble",
        "opara",
        "paired_rounds", "promises", "schedule", "schedulers", "simulation", "untrusted_schedules",
        "whole_operators",
    ),
    "serving": (
        "server_access", "server_blocks", "server_clients", "server_executor", "server_faults",
        "server_limits", "server_models", "server_options", "server_ray", "server_reload",
        "serving", "serving_deadlines", "serving_measuring", "serving_observed", "serving_pace",
        "serving_policies", "top", "top_whole",
    ),
    "session": (
        "inference_session", "known_kernels", "like_onnxruntime", "replaced_weights", "session",
        "session_background", "session_by_size", "session_fork",
    ),
    "tests": (
        "audit", "code_blocks", "doctests", "environment_page", "house", "install_page", "links",
        "object_files",
        "random_graphs_runner", "random_ranges",
        "release", "rooms", "tutorials", "words", "workflow",
    ),
    "tvmc": ("tvmc",),
    "viz": ("page_in_browser", "viz"),
}  # fmt: skip


def runs_with(room: str, stem: str) -> bool:
    """Whether a file of `tests/unit`, such as `test_plan`, runs when only one room is tested.

    Examples
    --------
    >>> runs_with("plan", "test_plan"), runs_with("viz", "test_plan"), runs_with("viz", "test_new")
    (True, False, True)
    """
    name = stem.removeprefix("test_")
    homes = [home for home, names in ROOMS.items() if name in names]
    return room in homes or not homes
