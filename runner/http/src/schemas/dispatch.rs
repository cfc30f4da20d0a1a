//! Offers, audiences, assignments, events.

use serde_json::json;

use super::{
    Schemas, any, array, duration, flag, integer, list_of, name, nullable, object, one_of, some_object, text, time, to,
    uuid,
};

pub(super) fn dispatch(all: &mut Schemas) {
    let stock = json!({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "each"}], "description": "Stock per occurrence; `each`: every member once."});
    let fields = [
        (
            "audience",
            json!({"type": "string", "description": "`uid_x`: a user; `gid_x`: a user group."}),
        ),
        ("kind?", one_of(&["once", "interval", "daily"])),
        ("starts_at?", text()),
        ("anchor?", text()),
        ("every?", duration()),
        ("every_days?", integer()),
        ("at?", text()),
        ("timezone?", text()),
        ("ends_at?", nullable(text())),
        ("template?", nullable(text())),
        ("params?", some_object()),
        ("dispatch_times?", stock.clone()),
        ("mode?", one_of(&["single", "repeat"])),
        ("priority?", integer()),
        ("max_hold?", nullable(text())),
        ("return_failed?", flag()),
        ("enabled?", flag()),
    ];
    let mut spec = fields.to_vec();
    spec.insert(0, ("id?", name()));
    all.insert("OfferSpec", object(&spec));
    let mut offer = fields.to_vec();
    offer.insert(0, ("id", name()));
    offer.extend([("created_at", time()), ("updated_at", time()), ("run?", uuid())]);
    all.insert("Offer", object(&offer));
    all.insert("OfferList", list_of(to("Offer")));
    all.insert(
        "Occurrence",
        object(&[
            ("offer", name()),
            ("kind", one_of(&["once", "interval", "daily"])),
            ("audience", text()),
            ("occurrence", time()),
            ("dispatch_times", stock),
            ("taken", integer()),
            ("completed", integer()),
            ("failed", integer()),
            ("left", nullable(integer())),
            ("enabled", flag()),
        ]),
    );
    all.insert("OccurrenceList", list_of(to("Occurrence")));
    let audience = object(&[
        ("audience", text()),
        ("count", integer()),
        ("created_at", time()),
        ("updated_at", time()),
    ]);
    all.insert("Audience", audience);
    all.insert("AudienceList", list_of(to("Audience")));
    all.insert("MembersSpec", object(&[("members", array(text()))]));
    all.insert(
        "MembersPatch",
        object(&[("add?", array(text())), ("remove?", array(text()))]),
    );
    all.insert(
        "MembersView",
        object(&[
            ("audience", text()),
            ("members", array(text())),
            ("count", integer()),
            ("next_cursor", nullable(text())),
        ]),
    );
    all.insert("Poll", object(&[("wait?", duration())]));
    all.insert(
        "Completion",
        object(&[
            ("assignment_id", uuid()),
            ("status", one_of(&["completed", "failed"])),
            ("result?", any()),
        ]),
    );
    all.insert(
        "Assignment",
        object(&[
            ("assignment_id", uuid()),
            ("offer", name()),
            ("uid", text()),
            ("audience", text()),
            ("occurrence", time()),
            ("params", some_object()),
            (
                "state",
                one_of(&["assigned", "completed", "failed", "revoked", "expired"]),
            ),
            ("redo", flag()),
            ("assigned_at", time()),
            ("finished_at", nullable(time())),
            ("result", any()),
        ]),
    );
    all.insert(
        "Peek",
        object(&[
            ("uid", text()),
            (
                "gives",
                nullable(object(&[
                    ("offer", name()),
                    ("audience", text()),
                    ("occurrence", time()),
                    ("params", some_object()),
                    ("redo", flag()),
                    ("assignment_id", nullable(uuid())),
                    ("assigned_at", nullable(time())),
                ])),
            ),
            ("next_at", nullable(time())),
            ("window", object(&[("from", time()), ("to", time())])),
            ("audiences", array(text())),
            (
                "offers",
                array(object(&[
                    ("offer", name()),
                    ("audience", text()),
                    ("why", one_of(&heddle_engine::Why::ALL.map(heddle_engine::Why::as_str))),
                    ("occurrence", nullable(time())),
                    ("next_at", nullable(time())),
                ])),
            ),
            ("more", flag()),
        ]),
    );
    all.insert("AssignmentList", list_of(to("Assignment")));
    all.insert("Event", object(&[("cursor", text()), ("kind", text()), ("at", time())]));
}
