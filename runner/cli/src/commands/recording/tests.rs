use super::*;
use serde_json::json;

fn replay(http: &str, sql: &str) -> Result<Replay, String> {
    let (http, sql) = (serde_json::from_str(http).unwrap(), serde_json::from_str(sql).unwrap());
    Replay::new(http, sql)
}

fn request(method: &str, url: &str, body: &'static str) -> WebRequest {
    WebRequest {
        method: method.into(),
        url: url.into(),
        body: body.into(),
    }
}

fn statement(statement: &str, params: &str, rows: bool) -> SqlStatement {
    SqlStatement {
        connection: "w".into(),
        statement: statement.into(),
        params: params.into(),
        rows,
    }
}

#[test]
fn what_was_recorded_is_given_once_and_to_what_was_asked() {
    let replay = replay(
        r#"[{"url": "http://a/", "answer": {"body": "first", "headers": {"x": "1", "y": ["2", "3"]}}},
                {"url": "http://a", "answer": {"body": {"n":  1}}},
                {"method": "post", "url": "http://a/p", "body": {"a": 1, "b": 2}, "answer": {"status": 204}},
                {"url": "http://b/", "error": "nobody is there"},
                {"url": "http://never/", "answer": {}}]"#,
        "[]",
    )
    .unwrap();
    let ask = |method, url, body| replay.request(&request(method, url, body)).unwrap();
    let first = ask("GET", "http://me:you@a/#top", "").unwrap();
    assert_eq!((first.status, &first.body[..]), (200, &b"first"[..]));
    let headers = [("x", "1"), ("y", "2"), ("y", "3")];
    let headers: Vec<(String, String)> = headers.map(|(name, value)| (name.into(), value.into())).into();
    assert_eq!(first.headers, headers);
    assert_eq!(&ask("GET", "http://a/", "any").unwrap().body[..], br#"{"n":  1}"#);
    let third = ask("GET", "http://a/", "").unwrap_err();
    assert_eq!(third, "not recorded: GET http://a/, more than 2 times");
    let other = ask("POST", "http://a/p", r#"{"a": 2}"#).unwrap_err();
    assert_eq!(other, r#"not recorded: POST http://a/p with the body {"a": 2}"#);
    assert_eq!(ask("POST", "http://a/p", r#"{"b":2,"a":1}"#).unwrap().status, 204);
    assert_eq!(ask("GET", "http://b/", "").unwrap_err(), "nobody is there");
    let expected = [third, other];
    assert_eq!(replay.faults(true), expected);
    let unasked = "recorded but not used: GET http://never/".to_owned();
    assert_eq!(replay.faults(false), [&expected[..], &[unasked]].concat());
}

#[test]
fn statements_are_distinguished() {
    let replay = replay(
        "[]",
        r#"[{"connection": "w", "statement": "select 1\n from t", "params": [1, "a"], "rows": [{"a":  1}, {"a": 2}]},
                {"connection": "w", "statement": "delete from t", "count": 3},
                {"connection": "w", "statement": "select x", "error": "no such column"}]"#,
    )
    .unwrap();
    let ask = |text, params, rows| replay.statement(&statement(text, params, rows)).unwrap();
    assert!(ask("select 1 from t", "[1, \"b\"]", true).is_err());
    assert!(ask("select 1 from t", "[1, \"a\"]", false).is_err());
    let rows = ask("select 1   from t", "[1,\"a\"]", true);
    assert_eq!(rows, Ok(SqlAnswer::Rows(r#"[{"a":  1},{"a": 2}]"#.into())));
    assert_eq!(ask("delete from t", "[]", false), Ok(SqlAnswer::Count(3)));
    assert_eq!(ask("select x", "[]", true), Err("no such column".into()));
    let faults = replay.faults(false);
    assert_eq!(faults[0], r#"not recorded: query on w: select 1 from t with [1, "b"]"#);
    assert_eq!(faults.len(), 2);
}

#[test]
fn recordings_that_say_too_little_or_too_much_are_refused() {
    for (http, sql, fault) in [
        (
            r#"[{"url": "http://a"}]"#,
            "[]",
            "http[0] needs either `answer` or `error`",
        ),
        (r#"[{"url": "a", "answer": {}}]"#, "[]", "http[0] `url` a"),
        (
            r#"[{"url": "http://a", "body": "", "body_base64": "", "answer": {}}]"#,
            "[]",
            "both `body`",
        ),
        (
            r#"[{"url": "http://a", "answer": {"body_base64": "?"}}]"#,
            "[]",
            "`body_base64`",
        ),
        (
            r#"[{"url": "http://a", "answer": {"status": 7}}]"#,
            "[]",
            "7 is not a valid status",
        ),
        (
            "[]",
            r#"[{"connection": "w", "statement": "x", "rows": [], "count": 1}]"#,
            "sql[0] needs one of",
        ),
    ] {
        let error = replay(http, sql).err().unwrap_or_default();
        assert!(error.contains(fault), "{http} {sql}: {error}");
    }
}

#[test]
fn what_is_kept_can_be_replayed() {
    let answer = WebAnswer {
        status: 201,
        headers: [
            ("Content-Type", "application/json"),
            ("date", "today"),
            ("set-cookie", "session=abc; Path=/"),
            ("set-cookie", "b"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        body: "{\"b\": 1,\n \"a\": 2}\n".into(),
    };
    let asked = request("POST", "http://me:secret@a/?q=1#x", "plain");
    let exchange = HttpExchange::kept(&asked, &Ok(answer));
    let text = serde_json::to_string(&exchange).unwrap();
    assert!(text.contains("\"body\":{\"b\": 1,\n \"a\": 2}"), "{text}");
    assert!(
        !text.contains("secret") && !text.contains("abc") && !text.contains("today"),
        "{text}"
    );
    let again: HttpExchange = serde_json::from_str(&text).unwrap();
    let replay = Replay::new(vec![again], Vec::new()).unwrap();
    let answer = replay.request(&asked).unwrap().unwrap();
    assert_eq!(&answer.body[..], b"{\"b\": 1,\n \"a\": 2}");
    let cookies: Vec<&str> = answer
        .headers
        .iter()
        .filter(|(name, _)| name == "set-cookie")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(cookies, ["session=not-recorded; Path=/", "cookie=not-recorded"]);
    let binary = HttpExchange::kept(
        &asked,
        &Ok(WebAnswer {
            status: 200,
            headers: Vec::new(),
            body: Bytes::from_static(&[0xff, 0]),
        }),
    );
    assert_eq!(json!(binary)["answer"]["body_base64"], "/wA=");
    let rows = SqlExchange::kept(
        &statement("select", "[1]", true),
        &Ok(SqlAnswer::Rows("[{\"b\":1,\"a\":2}]".into())),
    );
    let text = serde_json::to_string(&rows.unwrap()).unwrap();
    assert_eq!(
        text,
        r#"{"connection":"w","statement":"select","params":[1],"rows":[{"b":1,"a":2}]}"#
    );
}
