/* Search without a web server. Browsers refuse web workers on pages that are opened from the disk, so there the search
   runs in a hidden frame that offers the same interface. The file's name tells the offline plugin that this exists. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = () => undefined;
      this.ready = new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        inner.document.body.append(script);
      });
    }

    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.ready.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
