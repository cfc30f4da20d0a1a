//! Bindings generated from `wit/task.wit`. The two worlds share the bindings of what they import.

#![allow(missing_docs, reason = "generated; the WIT is the documentation")]

wit_bindgen::generate!({
    path: "wit",
    world: "imports",
    generate_unused_types: true,
});

pub use self::heddle::task as imports;

/// Bindings of the world `task`: the script runs once for each attempt.
pub mod task {
    wit_bindgen::generate!({
        path: "wit",
        world: "task",
        pub_export_macro: true,
        export_macro_name: "export_task",
        with: {
            "heddle:task/types@1.0.0": crate::bindings::imports::types,
            "heddle:task/context@1.0.0": crate::bindings::imports::context,
            "heddle:task/upstream@1.0.0": crate::bindings::imports::upstream,
            "heddle:task/log@1.0.0": crate::bindings::imports::log,
            "heddle:task/progress@1.0.0": crate::bindings::imports::progress,
            "heddle:task/state@1.0.0": crate::bindings::imports::state,
            "heddle:task/enqueue@1.0.0": crate::bindings::imports::enqueue,
            "heddle:task/notify@1.0.0": crate::bindings::imports::notify,
            "heddle:task/secret@1.0.0": crate::bindings::imports::secret,
            "heddle:task/sql@1.0.0": crate::bindings::imports::sql,
        },
    });
}

/// Bindings of the world `consumer`: the script gets batches of messages.
pub mod consumer {
    wit_bindgen::generate!({
        path: "wit",
        world: "consumer",
        pub_export_macro: true,
        export_macro_name: "export_consumer",
        with: {
            "heddle:task/types@1.0.0": crate::bindings::imports::types,
            "heddle:task/context@1.0.0": crate::bindings::imports::context,
            "heddle:task/upstream@1.0.0": crate::bindings::imports::upstream,
            "heddle:task/log@1.0.0": crate::bindings::imports::log,
            "heddle:task/progress@1.0.0": crate::bindings::imports::progress,
            "heddle:task/state@1.0.0": crate::bindings::imports::state,
            "heddle:task/enqueue@1.0.0": crate::bindings::imports::enqueue,
            "heddle:task/notify@1.0.0": crate::bindings::imports::notify,
            "heddle:task/secret@1.0.0": crate::bindings::imports::secret,
            "heddle:task/sql@1.0.0": crate::bindings::imports::sql,
        },
    });
}
