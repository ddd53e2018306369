// Browsers start no Worker from file:// addresses. This stand-in runs the worker of the search in a hidden frame, so that
// the search also works when the site is opened as files. Its name contains "iframe-worker": the offline plugin then does
// not add the one that is loaded from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const start = () => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        document.body.appendChild(frame);
        const inner = frame.contentWindow;
        inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = () => {
          this.inner = inner;
          this.waiting.splice(0).forEach((data) => this.postMessage(data));
        };
        inner.document.body.appendChild(script);
      };
      if (document.body) start();
      else addEventListener("DOMContentLoaded", start);
    }

    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {}
  };
}
