use http_body_util::BodyExt as _;

use super::*;

async fn text(response: Response<ResponseBody>) -> (u16, String) {
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

fn checks() -> HealthChecks {
    let broken = Check::new("etcd", || async { Err("secret reason".to_owned()) });
    HealthChecks::new("readyz", vec![Check::ping(), broken])
}

#[tokio::test]
async fn reports_are_worded_as_in_kubernetes() {
    let failed = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n";
    assert_eq!(text(checks().serve_all("").await).await, (500, failed.to_owned()));
    assert_eq!(text(checks().serve_all("exclude=etcd").await).await, (200, "ok".to_owned()));
    assert_eq!(
        text(checks().serve_all("verbose&exclude=etcd&exclude=nosuch").await).await.1,
        "[+]ping ok\n[+]etcd excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"nosuch\"\nreadyz check passed\n"
    );
}

#[tokio::test]
async fn single_checks_tell_their_reason() {
    assert_eq!(text(checks().serve_one("ping").await.unwrap()).await, (200, "ok".to_owned()));
    assert_eq!(
        text(checks().serve_one("etcd").await.unwrap()).await,
        (500, "internal server error: secret reason\n".to_owned())
    );
    assert!(checks().serve_one("nosuch").await.is_none());
}
