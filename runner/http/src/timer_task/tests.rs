use super::*;

fn now() -> Time {
    "2026-11-20T10:00:00Z".parse().expect("a time")
}

fn meant(rows: &[TimerTaskRow]) -> Result<Meant, Problem> {
    group_spec(rows, Origin::Sent(&[]), Tz::Asia__Shanghai, now())
}

fn rows(text: &str) -> Vec<TimerTaskRow> {
    rows_of(&read_tree(text).expect("a tree"))
}

fn rows_of(tree: &[TimerTask]) -> Vec<TimerTaskRow> {
    let id = |index: usize| 100 + index as i64;
    tree.iter()
        .enumerate()
        .map(|(index, task)| TimerTaskRow {
            task_id: id(index),
            parent: task.parent.map(id),
            definition: Value::Object(task.fields.clone()),
        })
        .collect()
}

/// What is wrong with a tree that a client sends, up to the spec of its group.
fn refusal(text: &str) -> Problem {
    let refused = || -> Result<(), Problem> {
        let tree = read_tree(text)?;
        said_enabled(&tree)?;
        let (rows, origin) = (rows_of(&tree), Origin::Sent(&tree));
        let Meant { spec, .. } = group_spec(&rows, origin, Tz::Asia__Shanghai, now())?;
        let spec = heddle_domain::spec::parse_group(&spec).map_err(|faults| origin.of_group(&rows, faults.into()))?;
        // As the check of the whole group does.
        for (name, schedule) in &spec.schedules {
            heddle_domain::schedule::Schedule::compile(schedule, Tz::Asia__Shanghai, now()).map_err(|fault| {
                origin.of_group(&rows, Problem::invalid(fault.below(&format!("/schedules/{name}"))))
            })?;
        }
        Ok(())
    };
    refused().expect_err(text)
}

/// Their services may have any names: workers get them as they were sent.
#[test]
fn names_of_services_are_no_templates() {
    let rows = rows(
        r#"{"taskName": "{{", "appServiceName": "bill", "apiServiceName": "{{ 1+1 }}", "apiMethodName": "{% if"}"#,
    );
    let spec = meant(&rows).unwrap().spec;
    assert_eq!(
        spec["tasks"]["task-100"]["params"],
        json!({"apiServiceName": "{{ \"{{ 1+1 }}\" }}", "apiMethodName": "{{ \"{% if\" }}", "taskId": 100})
    );
    assert_eq!(spec["tasks"]["task-100"]["description"], "{{");
}

#[test]
fn a_tree_becomes_a_group() {
    let rows = rows(
        r#"{"taskName": "root", "appServiceName": "bill", "apiServiceName": "S", "apiMethodName": "m", "timeout": -1,
            "what": {"is": "this"},
            "taskScheduleConf": {"timerList": [
              {"type": 1, "cron": "0/5 * * * * * ?", "startDateTime": "2026-01-01 00:00:00", "status": 1},
              {"type": "2", "initDelay": 1000, "period": "5000"},
              {"type": 3, "delay": 300, "status": -1, "endDateTime": 1893456000000},
              {"type": 4, "delay": 60000}]},
            "subTaskList": [
              {"taskName": "same", "apiMethodName": "a", "timeout": 2000,
               "subTaskList": [{"taskName": "same", "appServiceName": "mail", "status": -1, "subTaskList": null}]},
              {"taskName": "same", "apiMethodName": "b", "subTaskList": []}]}"#,
    );
    let spec = meant(&rows).unwrap().spec;
    assert_eq!(
        spec["schedules"],
        json!({
            "timer-1": {"cron": "0/5 * * * * * ?", "starts_at": "2026-01-01 00:00:00"},
            "timer-2": {"every": "5000ms", "initial_delay": "1000ms"},
            "timer-3": {"after": "300ms", "enabled": false, "ends_at": "2030-01-01T00:00:00+00:00"},
            "timer-4": {"once": {"delay": "60000ms"}},
        })
    );
    let task = |id: i64| &spec["tasks"][format!("task-{id}")];
    assert_eq!(
        *task(100),
        json!({"queue": "bill", "timeout": "never", "description": "root",
               "params": {"apiServiceName": "S", "apiMethodName": "m", "taskId": 100}})
    );
    assert_eq!(
        (&task(101)["queue"], &task(101)["timeout"]),
        (&json!("bill"), &json!("2000ms"))
    );
    assert_eq!(task(101)["retry"]["retries"], TIMEOUT_RETRIES);
    assert_eq!(task(101)["depends_on"], json!(["task-100"]));
    assert_eq!(task(102)["depends_on"], json!(["task-100"]));
    assert_eq!(
        (&task(103)["depends_on"], &task(103)["queue"], &task(103)["when"]),
        (&json!(["task-101"]), &json!("mail"), &json!("false"))
    );
    assert!(
        heddle_domain::spec::parse_group(&spec).is_ok(),
        "{:?}",
        heddle_domain::spec::parse_group(&spec)
    );
}

/// As in all bodies, a whole number may have a decimal point.
#[test]
fn whole_numbers_may_have_a_decimal_point() {
    let tree = |body: &str| read_tree(body).unwrap();
    let sent = tree(
        r#"{"taskId": 7.0, "appServiceName": "q", "timeout": 2000.0, "status": -1.0, "taskScheduleConf": {"timerList": [
            {"type": 3.0, "delay": 3e2, "status": 1.0, "endDateTime": 1893456000000.0}]}}"#,
    );
    assert_eq!(sent[0].task_id, Some(7));
    assert_eq!(said_enabled(&sent).unwrap(), Some(false));
    let spec = meant(&rows_of(&sent)).unwrap().spec;
    assert_eq!(spec["tasks"]["task-100"]["timeout"], "2000ms");
    assert_eq!(
        spec["schedules"]["timer-1"],
        json!({"after": "300ms", "ends_at": "2030-01-01T00:00:00+00:00"})
    );
    refused_at(r#"{"appServiceName": "q", "timeout": 1.5}"#, "/timeout", "whole number");
}

#[test]
fn trees_may_be_deep_but_not_without_end() {
    let deep = |depth: usize| {
        let mut text = r#"{"appServiceName":"q""#.to_owned();
        for _ in 1..depth {
            text.push_str(r#","subTaskList":[{"taskName":"x""#);
        }
        text.push('}');
        for _ in 1..depth {
            text.push_str("]}");
        }
        text
    };
    let rows = rows(&deep(1_500));
    assert_eq!(rows.len(), 1_500);
    assert_eq!(meant(&rows).unwrap().spec["tasks"].as_object().unwrap().len(), 1_500);
    // Each level is read once, however many are below it: otherwise the last ones would take minutes.
    for depth in [DEPTH_MAX + 1, 100_000] {
        assert_eq!(read_tree(&deep(depth)).unwrap_err().status.as_u16(), 422);
    }
    let text = "x".repeat(8 << 20);
    let tree = read_tree(&deep(DEPTH_MAX).replacen("\"x\"}", &format!("\"{text}\"}}"), 1)).unwrap();
    assert_eq!(tree.last().unwrap().fields["taskName"], text);
}

#[test]
fn a_status_that_is_left_out_is_answered_as_enabled() {
    let rows = rows(r#"{"appServiceName": "q", "subTaskList": [{"status": null}, {"status": "-1"}, {"status": 1.0}]}"#);
    let shown = shown(&rows);
    let list = shown["taskList"].as_array().unwrap();
    let statuses: Vec<&Value> = list.iter().map(|node| &node["status"]).collect();
    assert_eq!(shown["status"], 1);
    assert_eq!(statuses, [&json!(1), &json!(1), &json!(-1), &json!(1)]);
}

#[test]
fn what_is_wrong_is_said() {
    let check = |text: &str, status: u16| {
        let found = read_tree(text).and_then(|tree| meant(&rows_of(&tree)));
        assert_eq!(found.unwrap_err().status.as_u16(), status, "{text}");
    };
    check("{", 400);
    check("[]", 422);
    check("{}", 422);
    check(r#"{"taskId": "x"}"#, 422);
    check(r#"{"appServiceName": "q", "subTaskList": {}}"#, 422);
    check(r#"{"appServiceName": "q", "subTaskList": [7]}"#, 422);
    check(
        r#"{"appServiceName": "q", "taskId": 1, "subTaskList": [{"taskId": 1}]}"#,
        422,
    );
    check(
        r#"{"appServiceName": "q", "taskScheduleConf": {"timerList": [{"type": 5}]}}"#,
        422,
    );
    check(
        r#"{"appServiceName": "q", "taskScheduleConf": {"timerList": [{"type": 1}]}}"#,
        422,
    );
    let timers = r#""taskScheduleConf": {"timerList": [{"type": 2, "period": 1000}]}"#;
    check(
        &format!(r#"{{"appServiceName": "q", "subTaskList": [{{{timers}}}]}}"#),
        422,
    );
}

#[test]
fn the_newer_shape_means_the_same() {
    let newer = rows(
        r#"{"taskInfoConf": {"status": 1, "taskName": "root", "timeout": 1000, "appServiceName": "bill",
              "apiServiceName": "S", "apiMethodName": "m", "subTaskList": [{"taskName": "below"}]},
            "taskScheduleConf": {"timerList": [{"timerType": 2, "initDelay": 5, "period": 1000}]}, "requestId": "r"}"#,
    );
    let older = rows(
        r#"{"status": 1, "taskName": "root", "timeout": 1000, "appServiceName": "bill", "apiServiceName": "S",
            "apiMethodName": "m", "subTaskList": [{"taskName": "below"}],
            "taskScheduleConf": {"timerList": [{"type": 2, "initDelay": 5, "period": 1000}]}}"#,
    );
    let (newer, older) = (meant(&newer).unwrap(), meant(&older).unwrap());
    assert_eq!(newer.spec, older.spec);
    assert_eq!(newer.spec["overlap"], "skip");
    assert_eq!(newer.spec["timezone"], "Asia/Shanghai");
    assert!(newer.notes.is_empty());
}

/// As in the services that these calls imitate, unlike in all other bodies.
#[test]
fn of_a_key_that_occurs_twice_the_last_one_counts() {
    let tree = read_tree(
        r#"{"appServiceName": "p", "appServiceName": "q", "subTaskList": [{"taskName": "gone"}],
            "subTaskList": [{"taskName": "a", "extra": {"n": 1, "n": 2}, "taskName": "b"}]}"#,
    )
    .unwrap();
    assert_eq!(tree.len(), 2);
    assert_eq!(tree[0].fields["appServiceName"], "q");
    assert_eq!(
        (&tree[1].fields["taskName"], &tree[1].fields["extra"]),
        (&json!("b"), &json!({"n": 2}))
    );
}

#[test]
fn what_looks_like_children_is_refused() {
    for (text, pointer) in [
        (
            r#"{"appServiceName": "q", "taskList": [{"taskName": "x"}]}"#,
            "/taskList",
        ),
        (r#"{"appServiceName": "q", "children": [1]}"#, "/children"),
        (r#"{"appServiceName": "q", "whatever": [{"a": 1}]}"#, "/whatever"),
        (
            r#"{"appServiceName": "q", "childTask": {"taskName": "x"}}"#,
            "/childTask",
        ),
        (
            r#"{"taskInfoConf": {"appServiceName": "q"}, "subTaskList": [{}]}"#,
            "/subTaskList",
        ),
        (
            r#"{"taskInfoConf": {"appServiceName": "q"}, "taskList": [{}]}"#,
            "/taskList",
        ),
        (r#"{"taskInfoConf": [], "a": 1}"#, "/taskInfoConf"),
        (
            r#"{"appServiceName": "q", "subTaskList": [{"subTasks": [{}]}]}"#,
            "/subTaskList/0/subTasks",
        ),
        (
            r#"{"taskInfoConf": {"appServiceName": "q", "taskScheduleConf": {}}, "taskScheduleConf": {}}"#,
            "/taskScheduleConf",
        ),
        (
            r#"{"appServiceName": "q", "taskScheduleConf": {"timerlist": [{"type": 4, "delay": 1}]}}"#,
            "/taskScheduleConf/timerlist",
        ),
        (
            r#"{"taskInfoConf": {"appServiceName": "q"}, "taskScheduleConf": {"timerList": [], "timers": [{}]}}"#,
            "/taskScheduleConf/timers",
        ),
        (
            r#"{"taskInfoConf": {"appServiceName": "q", "taskScheduleConf": {"a/b": [{}]}}}"#,
            "/taskInfoConf/taskScheduleConf/a~1b",
        ),
        (r#"{"taskInfoConf": {"appServiceName": "q"}, "taskId": 7}"#, "/taskId"),
        (r#"{"taskInfoConf": {"appServiceName": "q"}, "status": -1}"#, "/status"),
        (
            r#"{"taskInfoConf": {"taskName": "r"}, "appServiceName": "q"}"#,
            "/appServiceName",
        ),
    ] {
        let problem = read_tree(text).unwrap_err();
        assert_eq!(
            (problem.status.as_u16(), problem.errors[0].pointer.as_str()),
            (422, pointer),
            "{text}"
        );
    }
    // Nothing is dropped by these.
    for text in [
        r#"{"appServiceName": "q", "taskList": [], "children": null, "tags": ["a"], "extra": {"a": 1}}"#,
        r#"{"taskInfoConf": null, "appServiceName": "q"}"#,
        r#"{"taskInfoConf": {"appServiceName": "q"}, "taskId": 0, "taskName": "", "status": null, "requestId": "r"}"#,
        r#"{"appServiceName": "q", "taskScheduleConf": {"timerList": [], "tags": ["a"], "more": []}}"#,
    ] {
        assert!(read_tree(text).is_ok(), "{text}");
    }
    assert_eq!(
        read_tree(r#"{"taskId": 0, "appServiceName": "q"}"#).unwrap()[0].task_id,
        None
    );
}

#[test]
fn a_timer_whose_window_is_over_is_kept() {
    let rows = rows(
        r#"{"appServiceName": "q", "taskScheduleConf": {"timerList": [
              {"timerType": 1, "cron": "12 12 12 0/2 * *", "startDateTime": "2021-08-09", "endDateTime": "2021-10-01"},
              {"timerType": 4, "delay": 10000, "endDateTime": "2021-10-01"},
              {"timerType": 1, "cron": "0 0 0 1 1 ?", "startDateTime": "2021-08-09", "endDateTime": "2021-10-01"},
              {"timerType": 4, "delay": 10000, "startDateTime": "2027-08-09", "endDateTime": "2027-10-01"},
              {"timerType": 1, "cron": "12 12 12 0/2 * *", "startDateTime": "2026-11-20"}]}}"#,
    );
    let Meant { spec, notes } = meant(&rows).unwrap();
    assert_eq!(
        spec["schedules"],
        json!({
            "timer-1": {"cron": "12 12 12 1/2 * *", "starts_at": "2021-08-09", "ends_at": "2021-10-01", "enabled": false},
            "timer-2": {"once": {"delay": "10000ms"}, "ends_at": "2021-10-01", "enabled": false},
            "timer-3": {"cron": "0 0 0 1 1 ?", "starts_at": "2021-08-09", "ends_at": "2021-10-01", "enabled": false},
            "timer-4": {"once": {"delay": "10000ms"}, "starts_at": "2027-08-09", "ends_at": "2027-10-01"},
            "timer-5": {"cron": "12 12 12 1/2 * *", "starts_at": "2026-11-20"},
        })
    );
    for kept in ["timer-1", "timer-2", "timer-3"] {
        let written = serde_json::from_value(spec["schedules"][kept].clone()).unwrap();
        let schedule = heddle_domain::schedule::Schedule::compile(&written, Tz::Asia__Shanghai, now()).unwrap();
        assert!(!schedule.enabled() && !schedule.fires(), "{kept}");
    }
    assert_eq!(notes.len(), 3);
    assert!(
        notes[0].contains("timer 1") && notes[0].contains("window is in the past"),
        "{notes:?}"
    );
}

/// A tree in the newer shape: fields of its root, and its second timer.
fn newer(root: &str, timer: &str) -> String {
    format!(
        r#"{{"taskInfoConf": {{"taskName": "r", {root}}},
            "taskScheduleConf": {{"timerList": [{{"timerType": 4, "delay": 1}}, {timer}]}}}}"#
    )
}

/// One with a node two levels below the root: fields of this node.
fn with_node(node: &str) -> String {
    let list = format!(r#"[{{}}, {{"subTaskList": [{{"taskName": "c", {node}}}]}}]"#);
    let root = format!(r#""appServiceName": "ca", "subTaskList": {list}"#);
    newer(&root, r#"{"timerType": 4, "delay": 1}"#)
}

/// The body is refused, at this place only, with this word.
fn refused_at(body: &str, pointer: &str, word: &str) {
    let problem = refusal(body);
    let found: Vec<&str> = problem.errors.iter().map(|fault| fault.pointer.as_str()).collect();
    assert_eq!((problem.status.as_u16(), found), (422, vec![pointer]), "{body}");
    assert!(problem.detail.contains(word), "{body}: {}", problem.detail);
}

#[test]
fn an_error_names_the_node_in_the_body() {
    for (node, field, word) in [
        (r#""timeout": "abc""#, "/timeout", "whole number"),
        (r#""timeout": -5"#, "/timeout", "-5"),
        (r#""timeout": 99999999999999999"#, "/timeout", "maximum"),
        (r#""status": 9"#, "/status", "9"),
        (r#""appServiceName": "a b""#, "/appServiceName", "character 2"),
        (r#""x": "\u0000""#, "/x", "U+0000"),
        (r#""children": [1]"#, "/children", "unknown field"),
        (r#""subTaskList": 1"#, "/subTaskList", "list"),
        (r#""subTaskList": [7]"#, "/subTaskList/0", "object"),
        (
            r#""taskScheduleConf": {"timerList": [{}]}"#,
            "/taskScheduleConf",
            "only the root",
        ),
        (r#""timerList": [{"type": 4}]"#, "/timerList", "only the root"),
        (
            r#""taskId": 5, "subTaskList": [{"taskId": "5"}]"#,
            "/subTaskList/0/taskId",
            "5 occurs twice",
        ),
    ] {
        let pointer = format!("/taskInfoConf/subTaskList/1/subTaskList/0{field}");
        refused_at(&with_node(node), &pointer, word);
    }
    for (root, field, word) in [
        (r#""status": 9"#, "/status", "9"),
        (r#""timeout": 1"#, "/appServiceName", "missing"),
        // Two children have the queue of the root: it is one error, of the root.
        (
            r#""appServiceName": "a b", "subTaskList": [{}, {}]"#,
            "/appServiceName",
            "character 2",
        ),
    ] {
        let body = newer(root, r#"{"timerType": 4, "delay": 1}"#);
        refused_at(&body, &format!("/taskInfoConf{field}"), word);
    }
    // In the older shape, the root is the body.
    refused_at(r#"{"timeout": 1}"#, "/appServiceName", "missing");
    let body = r#"{"appServiceName": "q", "subTaskList": [{"status": 9}]}"#;
    refused_at(body, "/subTaskList/0/status", "9");
    let problem = refusal(r#"{"taskInfoConf": {"subTaskList": [{"x": 1e999}]}}"#);
    assert_eq!(problem.status.as_u16(), 400);
    assert!(
        problem.detail.starts_with("/taskInfoConf/subTaskList/0/x: "),
        "{}",
        problem.detail
    );
}

/// Also if the error is found in the schedule that the timer means.
#[test]
fn an_error_names_the_timer_in_the_body() {
    for (timer, field, word) in [
        ("7", "", "object"),
        (r#"{"type": 9}"#, "/type", "`type`"),
        (r#"{"timerType": 1, "cron": "bad"}"#, "/cron", "cron"),
        (
            r#"{"timerType": 2, "period": 5}"#,
            "/period",
            "`period` must be at least",
        ),
        (r#"{"timerType": 3, "delay": 0}"#, "/delay", "`delay`"),
        (r#"{"timerType": 3, "period": 0}"#, "/period", "`period`"),
        (r#"{"timerType": 3, "delay": 9, "initDelay": -1}"#, "/initDelay", "-1"),
        (r#"{"timerType": 4, "delay": -1}"#, "/delay", "at least 0"),
        (
            r#"{"timerType": 4, "delay": 1, "startDateTime": "soon"}"#,
            "/startDateTime",
            "soon",
        ),
        (
            r#"{"timerType": 4, "delay": 1, "timeZone": "Mars"}"#,
            "/timeZone",
            "Mars",
        ),
    ] {
        let body = newer(r#""appServiceName": "ca""#, timer);
        refused_at(&body, &format!("/taskScheduleConf/timerList/1{field}"), word);
    }
    let older = r#"{"appServiceName": "q", "taskScheduleConf": {"timerList": [{"type": 2, "period": 1}]}}"#;
    refused_at(older, "/taskScheduleConf/timerList/0/period", "`period`");
    let inside = r#"{"taskInfoConf": {"appServiceName": "q", "taskScheduleConf": {"timerList": [{}]}}}"#;
    let pointer = "/taskInfoConf/taskScheduleConf/timerList/0/timerType";
    refused_at(inside, pointer, "`timerType`");
}

/// The end of a window is after its start, also in the past.
#[test]
fn a_reversed_window_is_refused() {
    for (starts, ends) in [
        ("2021-10-01", "2021-08-09"),
        ("2021-10-01", "2021-10-01"),
        ("2090-10-01", "2090-08-09"),
    ] {
        let problem = refusal(&format!(
            r#"{{"appServiceName": "q", "taskScheduleConf": {{"timerList": [
                {{"timerType": 4, "delay": 1, "startDateTime": "{starts}", "endDateTime": "{ends}"}}]}}}}"#
        ));
        assert_eq!(problem.errors[0].pointer, "/taskScheduleConf/timerList/0/endDateTime");
        assert!(
            problem.detail.contains("`endDateTime` must be after `startDateTime`"),
            "{}",
            problem.detail
        );
    }
}

/// A tree that was accepted before a rule can still be enabled and disabled.
#[test]
fn what_was_accepted_stays_valid() {
    let stored = rows(
        r#"{"appServiceName": "q", "timeout": -5, "taskScheduleConf": {"timerList": [
              {"timerType": 3, "delay": 300, "initDelay": -1},
              {"timerType": 4, "delay": 1, "startDateTime": "2021-10-01", "endDateTime": "2021-08-09"}]}}"#,
    );
    let of_stored = |rows: &[TimerTaskRow]| group_spec(rows, Origin::Stored, Tz::Asia__Shanghai, now());
    let spec = of_stored(&stored).unwrap().spec;
    assert_eq!(spec["tasks"]["task-100"]["timeout"], "never");
    assert_eq!(spec["schedules"]["timer-1"], json!({"after": "300ms"}));
    assert_eq!(spec["schedules"]["timer-2"]["enabled"], false);
    // What was never accepted has no place in the body of a call about one task: the error names the task.
    let problem = of_stored(&rows(r#"{"appServiceName": "q", "subTaskList": [{"timeout": "x"}]}"#)).unwrap_err();
    assert_eq!(problem.errors[0].pointer, "");
    assert!(
        problem.detail.contains("task 101 is no longer valid: /timeout: "),
        "{}",
        problem.detail
    );
}

#[test]
fn what_is_disabled_and_sent_without_a_status_stays_disabled() {
    let before = rows(r#"{"appServiceName": "q", "subTaskList": [{"status": -1}, {"status": "-1"}, {"status": 1}]}"#);
    let sent = r#"{"appServiceName": "q", "subTaskList": [{}, {"status": 1}, {}, {}]}"#;
    let statuses = |enabled: bool| {
        let mut rows = rows(sent);
        keep_disabled(&mut rows, &before, enabled);
        rows.into_iter()
            .map(|row| row.definition["status"].clone())
            .collect::<Vec<_>>()
    };
    let (none, off) = (Value::Null, json!(DISABLED));
    assert_eq!(statuses(true), [&none, &off, &json!(1), &none, &none].map(Value::clone));
    assert_eq!(statuses(false)[0], off);
}
