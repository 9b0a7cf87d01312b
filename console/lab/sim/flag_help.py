"""What the flags mean that an operator of batch runs may touch, in our own words.

By destination, as SGLang's parser calls it. The real parser has a text for each flag; the lab's has
these.
"""

from __future__ import annotations

from typing import Final

HELP: Final[dict[str, str]] = {
    "model_path": "Folder or hub name of the model's weights.",
    "tokenizer_path": "Folder or hub name of the tokenizer, where it is not the model's own.",
    "tokenizer_mode": (
        "auto takes the fast tokenizer where there is one, slow always the Python one."
    ),
    "tokenizer_worker_num": (
        "Tokenizer processes; more than one helps where thousands of short requests come at once."
    ),
    "skip_tokenizer_init": "No tokenizer: requests and answers are token ids.",
    "load_format": "How the weights are stored; dummy fills them with random numbers.",
    "trust_remote_code": "Run Python that the model's folder brings along.",
    "context_length": "Longest prompt plus answer, in tokens; the model's own limit by default.",
    "served_model_name": "Name under which the API offers the model.",
    "chat_template": "File or name of the chat template, instead of the tokenizer's own.",
    "revision": "Branch, tag or commit of the model on the hub.",
    "host": "Address the HTTP server listens on.",
    "port": "Port the HTTP server listens on.",
    "skip_server_warmup": (
        "Serve at once, without the request that warms up kernels; the first answers are slower."
    ),
    "dtype": "Number format of weights and activations; auto takes the checkpoint's.",
    "quantization": "Quantization method of the weights.",
    "kv_cache_dtype": (
        "Number format of the KV cache: fp8 holds twice the tokens of bf16 and may cost quality."
    ),
    "mem_fraction_static": (
        "Share of the card's memory for weights and caches together. Higher holds more "
        "requests; too high leaves nothing for activations and graphs, and the server dies of "
        "it."
    ),
    "max_running_requests": "Most requests decoded at once. The memory for caches may allow fewer.",
    "max_queued_requests": "Most requests waiting; beyond it a request is refused with 503.",
    "max_total_tokens": (
        "Size of the KV cache in tokens, instead of what the memory gives; for tests."
    ),
    "chunked_prefill_size": (
        "Most tokens of one prefill chunk; -1 turns chunking off. Smaller chunks hold up "
        "decoding less."
    ),
    "prefill_max_requests": "Most requests in one prefill batch.",
    "max_prefill_tokens": (
        "Most tokens in one prefill batch; a longer prompt still goes through, alone."
    ),
    "schedule_policy": (
        "Who comes first from the queue: lpm those with the longest cached prefix, fcfs those "
        "who came first."
    ),
    "schedule_conservativeness": (
        "Above 1 fewer requests are let in at once and fewer are thrown back; below 1 the "
        "reverse. Raise it where the log tells of many retractions."
    ),
    "page_size": "Tokens in a page of the KV cache.",
    "swa_full_tokens_ratio": "Cache of sliding-window layers against that of full attention.",
    "disable_hybrid_swa_memory": "One cache size for all layers, sliding-window ones too.",
    "device": "cuda, cpu and the like; found by itself where it is not given.",
    "tensor_parallel_size": "Cards that one server's weights are split over.",
    "tp_size": "Cards that one server's weights are split over.",
    "pp_size": "Stages that the layers are split into, one after the other.",
    "dp_size": "Copies of the model in one server.",
    "ep_size": "Cards that the experts of a mixture are spread over.",
    "enable_dp_attention": "Attention is split by requests, the rest by tensors.",
    "stream_interval": "Tokens between two parts of a streamed answer; more costs less CPU.",
    "random_seed": "Seed of sampling, the same at each start.",
    "watchdog_timeout": "Seconds that one forward pass may take before the server ends itself.",
    "dist_timeout": "Seconds that processes wait for each other.",
    "download_dir": "Where weights from the hub are kept.",
    "base_gpu_id": "First GPU to use, among the visible ones.",
    "gpu_id_step": "Distance between the GPUs of one server.",
    "sleep_on_idle": "Sleep while there is nothing to do, which saves CPU.",
    "log_level": "How much is logged: debug, info, warning, error.",
    "log_level_http": "The same for the web server's access lines.",
    "log_requests": "Log each request; what of it, says log-requests-level.",
    "log_requests_level": (
        "0 numbers only, then more and more of prompt and answer, up to all of it."
    ),
    "show_time_cost": "Log how long each step takes.",
    "enable_metrics": "Serve Prometheus metrics at /metrics.",
    "decode_log_interval": "Decode steps between two log lines.",
    "crash_dump_folder": "Where the last requests are written when the server crashes.",
    "api_key": "Key that every request must carry.",
    "file_storage_path": "Where uploaded files are kept.",
    "enable_cache_report": "Tell in each answer how many prompt tokens came from the prefix cache.",
    "reasoning_parser": "Parser that separates thinking from the answer.",
    "tool_call_parser": "Parser that turns text into tool calls.",
    "preferred_sampling_params": "JSON of sampling values for requests that give none.",
    "sampling_defaults": (
        "Whose sampling defaults count: the model's generation_config or the API's."
    ),
    "attention_backend": "Kernels for the attention layers, prefill and decode.",
    "prefill_attention_backend": "Kernels for attention in prefill alone.",
    "decode_attention_backend": "Kernels for attention in decode alone.",
    "sampling_backend": "Kernels that draw the next token.",
    "grammar_backend": "What holds answers to a JSON schema or grammar.",
    "mm_attention_backend": "Kernels for attention in the vision part.",
    "speculative_algorithm": (
        "Speculative decoding: a draft guesses tokens that the model then checks."
    ),
    "speculative_draft_model_path": "Weights of the draft model.",
    "speculative_num_steps": "Steps that the draft goes ahead.",
    "speculative_eagle_topk": "Tokens that the draft keeps at each step.",
    "speculative_num_draft_tokens": "Tokens checked at once.",
    "moe_runner_backend": "Kernels for the experts of a mixture.",
    "moe_a2a_backend": "How tokens travel between cards to their experts.",
    "mamba_ssm_dtype": (
        "Number format of the recurrent state of Mamba layers: bfloat16 takes half of float32."
    ),
    "mamba_scheduler_strategy": (
        "How recurrent states are kept: no_buffer takes the least, extra_buffer lets "
        "scheduling overlap with the GPU's work and takes several states a request."
    ),
    "mamba_radix_cache_strategy": "How recurrent states are kept for the prefix cache.",
    "mamba_full_memory_ratio": "Memory of recurrent states against that of the KV cache.",
    "max_mamba_cache_size": "Number of recurrent state slots.",
    "mamba_track_interval": (
        "Tokens between two recurrent states that are kept for the prefix cache."
    ),
    "enable_hierarchical_cache": "Keep what falls out of the KV cache in the host's memory.",
    "hicache_ratio": "Size of the host's cache against the card's.",
    "hicache_size": "Size of the host's cache in GB, instead of a ratio.",
    "cpu_offload_gb": "GB of weights that lie in the host's memory instead.",
    "disable_radix_cache": "No prefix cache: shared beginnings of prompts are computed each time.",
    "radix_eviction_policy": "Which cached prefixes go first.",
    "cuda_graph_max_bs": (
        "Largest decode batch that is recorded as a CUDA graph; larger ones run without and slower."
    ),
    "cuda_graph_bs": "Batch sizes that are recorded as CUDA graphs.",
    "disable_cuda_graph": "No CUDA graphs: less memory, a quicker start, slower decoding.",
    "disable_cuda_graph_padding": "Use a graph only for batches of exactly its size.",
    "enable_torch_compile": "Compile the model with torch; a long start for faster small batches.",
    "torch_compile_max_bs": "Largest batch that is compiled.",
    "disable_overlap_schedule": (
        "No overlap of CPU scheduling and GPU work: slower, with less memory for what is in flight."
    ),
    "enable_mixed_chunk": "Prefill and decode in one batch.",
    "num_continuous_decode_steps": (
        "Decode steps between two rounds of scheduling; more means throughput, and a later "
        "first token."
    ),
    "triton_attention_num_kv_splits": "Parts that the Triton decode kernel splits the cache into.",
    "enable_memory_saver": "Let memory be given back and taken again while the server lives.",
    "enable_p2p_check": "Check whether cards reach each other's memory.",
    "disable_custom_all_reduce": "Sum over cards by NCCL alone.",
    "enable_deterministic_inference": "The same answer whatever else is in the batch; slower.",
    "disable_outlines_disk_cache": "No grammar cache on disk.",
    "enable_lora": "Serve LoRA adapters.",
    "lora_paths": "Adapters to load at the start.",
    "max_loras_per_batch": "Most adapters in one batch.",
    "json_model_override_args": "JSON that replaces values of the model's config.json.",
    "nccl_port": "Port for NCCL's meeting; a free one by default.",
    "dist_init_addr": "Address where the processes of several machines meet.",
    "nnodes": "Machines that one server spans.",
    "node_rank": "Which of those machines this is.",
}
