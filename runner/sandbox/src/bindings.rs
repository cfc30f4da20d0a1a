//! The worlds of `guest-sdk/wit/task.wit`, as types and traits.

pub(crate) mod task {
    //! Bindings of the world `task`, with all the imports.
    wasmtime::component::bindgen!({
        path: "../../guest-sdk/wit",
        world: "heddle:task/task",
        imports: {
            "heddle:task/upstream.get": async,
            "heddle:task/state.get": async,
            "heddle:task/state.compare-and-set": async,
            "heddle:task/secret.get": async,
            "heddle:task/sql.query": async,
            "heddle:task/sql.execute": async,
        },
        exports: { default: async },
    });
}

pub(crate) mod consumer {
    //! Bindings of the world `consumer`; its imports are those of `task`.
    wasmtime::component::bindgen!({
        path: "../../guest-sdk/wit",
        world: "heddle:task/consumer",
        with: {
            "heddle:task/types": super::task::heddle::task::types,
            "heddle:task/context": super::task::heddle::task::context,
            "heddle:task/upstream": super::task::heddle::task::upstream,
            "heddle:task/log": super::task::heddle::task::log,
            "heddle:task/progress": super::task::heddle::task::progress,
            "heddle:task/state": super::task::heddle::task::state,
            "heddle:task/enqueue": super::task::heddle::task::enqueue,
            "heddle:task/notify": super::task::heddle::task::notify,
            "heddle:task/secret": super::task::heddle::task::secret,
            "heddle:task/sql": super::task::heddle::task::sql,
        },
        exports: { default: async },
    });
}
